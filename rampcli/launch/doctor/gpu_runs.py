"""Starts the processes of `rampcli doctor --gpu`: `rampcli pretrain`, and ranks that measure.

All of them are in one temporary folder, and each has a time limit.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.errors import RampcliError
from rampcli.files.records import ANY, read_json
from rampcli.launch.elastic import World
from rampcli.launch.environment import without_outer_launcher
from rampcli.launch.protocol import launcher_of
from rampcli.launch.run import describe
from rampcli.launch.supervise import wait_for_orphans
from rampcli.launch.workers import WorkerLog
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import StopSignals, die_with, signal_name
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import read_ranks
from rampcli.runs.rows import read_rows
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig
from rampcli.settings.trainer import Accelerator, TrainerConfig

RECIPE = "llama3_tiny"
Settings = Mapping[str, str | int | float]
"""Settings of a run, by key, and options, by group."""
SETTINGS: Settings = {
    "launch": "local",
    TrainerConfig.num_nodes: 1,
    TrainerConfig.precision: "bf16",
    TrainerConfig.max_samples: "null",
    TrainerConfig.val_samples: 0,
    ModelConfig.rampup_batch_size: "null",
    OptimConfig.optimizer: "adamw",
}
"""Settings of all runs. Those of a check replace them.

Muon would enlarge the differences in rounding between devices.
"""
MEASURE = "rampcli.worker.speed"
"""Program of the ranks that measure. It reads `ORDER` and writes `ANSWER`."""
ORDER, ANSWER = "order.json", "answer.json"
POLL_S = 0.02
MOST_LINES = 40
"""Lines of each log that a report quotes."""


class Interrupted(Exception):
    """A stop signal arrived while processes ran. They have ended."""


class ProcessesFailed(RampcliError):
    """Processes of a check failed or took too long.

    Attributes:
        logs: the last lines that they printed.
    """

    def __init__(self, message: str, logs: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.logs = logs


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """Starts processes that compute on one kind of device.

    Attributes:
        folder: temporary folder for their run directories and logs.
        signals: a stop signal ends the processes.
    """

    folder: Path
    accelerator: Accelerator
    signals: StopSignals

    def resolved(self, settings: Settings) -> Resolved:
        """Returns the plan of the run that `train` starts with these settings."""
        return resolve(apply_overrides(llm.from_factory(RECIPE), self._words(settings)))

    def _words(self, settings: Settings) -> list[str]:
        own = {**SETTINGS, TrainerConfig.accelerator: self.accelerator, **settings}
        return [f"{key}={value}" for key, value in own.items()]

    def train(
        self,
        name: str,
        settings: Settings,
        *,
        limit_s: float,
        kill_when: Callable[[RunDirectory], bool] = lambda _: False,
    ) -> RunDirectory:
        """Runs `rampcli pretrain` to its end, or kills it. A second call resumes the run.

        Args:
            name: folder of the run.
            settings: laid over `SETTINGS`.
            kill_when: whether the command and its workers are to be killed now.

        Raises:
            ProcessesFailed: the command failed, workers crashed and were restarted, or it has not
                ended within `limit_s` seconds.
            Interrupted: a stop signal arrived.
        """
        run, log = RunDirectory(self.folder / name), self.folder / f"{name}.log"
        words = self._words({**settings, "run_dir": name})
        with log.open("ab") as output:
            command = subprocess.Popen(
                python_command("rampcli", "pretrain", "--factory", RECIPE, *words),
                cwd=self.folder,
                env=without_outer_launcher(safe_environment()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
        try:
            with self._logs_in_errors(run, log):
                self._wait(
                    lambda: command.poll() is not None or kill_when(run), run, limit_s=limit_s
                )
                if code := command.poll():
                    raise _error_in(log, code)
                crashes = [row for row in _rows(run.events) if row.get("exit_code")]
                if crashes:
                    raise RampcliError(
                        f"its workers crashed (exit code {crashes[0]['exit_code']}) and were"
                        " restarted, which has helped"
                    )
        finally:
            command.kill()  # its workers die with it
            command.wait()
            wait_for_orphans(run, StopSignals())
        return run

    def measure(
        self, name: str, settings: Settings, order: dict[str, Any], *, limit_s: float
    ) -> dict[str, Any]:
        """Starts the ranks of a run with the program `MEASURE`, and returns what they measured.

        Raises:
            ProcessesFailed: a rank failed, or they have not ended within `limit_s` seconds.
            Interrupted: a stop signal arrived.
            UsageError: this machine has too few GPUs, or other runs use them.
        """
        run, resolved = RunDirectory(self.folder / name), self.resolved(settings)
        launcher, log = launcher_of(resolved.config), run.logs / "measure.log"
        describe(run, resolved, [])
        run.write_json(run.path / ORDER, order)
        with launcher.reserve_gpus(resolved) as gpus, self._logs_in_errors(run, log):
            start = launcher.rank_starter(resolved, MEASURE, gpus=gpus)
            workers = start(run, World.planned(resolved.plan.stages[0]), log)
            try:
                workers.begin_training()
                self._wait(lambda: workers.exit_code() is not None, run, limit_s=limit_s)
            finally:
                code = workers.exit_code()
                workers.kill()
                workers.end()
            if code:
                raise _error_in(log, code)
        answer: dict[str, Any] = read_json(run.path / ANSWER, {...: ANY})
        return answer

    def _wait(self, is_over: Callable[[], bool], run: RunDirectory, *, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not is_over():
            if self.signals.signal is not None:
                raise Interrupted
            if time.monotonic() > deadline:
                ranks = read_ranks(run)
                deeds = [
                    f"; rank {rank.rank}: {rank.doing} for {rank.doing_s:.0f} s"
                    for rank in ranks.behind or ranks.known
                ]
                raise RampcliError(f"did not end within {limit_s:g} s{''.join(deeds)}")
            time.sleep(POLL_S)

    @contextmanager
    def _logs_in_errors(self, run: RunDirectory, log: Path) -> Iterator[None]:
        try:
            yield
        except RampcliError as error:
            logs = sorted({log, *run.logs.glob("*.log")})
            raise ProcessesFailed(
                error.message, "\n\n".join(map(_end_of, logs)), remedy=error.remedy
            ) from error


def _end_of(log: Path) -> str:
    lines = WorkerLog(log, from_start=True).lines()
    return "\n".join((f"{log.name}:", *lines[-MOST_LINES:]))


def _rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of a run, or none if the run was killed before it wrote any."""
    return [*read_rows(path)] if path.exists() else []


def _error_in(log: Path, code: int) -> RampcliError:
    """Returns the error that a command or a rank has printed last, or how it ended."""
    message = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
    remedy = None
    for line in WorkerLog(log, from_start=True).lines():
        if line.startswith("error: "):
            message, remedy = line.removeprefix("error: "), None
        elif line.startswith("try: "):
            remedy = line.removeprefix("try: ").strip()
    return RampcliError(message, remedy=remedy)
