"""Starts processes for the checks of `rampcli doctor --gpu`, and writes their report.

A check trains with `rampcli pretrain`, or starts ranks that measure speed. Their run directories
and logs are in one temporary folder. A process that exceeds its time limit is killed, and its check
fails.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rampcli import __version__, llm
from rampcli.config.compose import apply_overrides
from rampcli.errors import RampcliError, visible
from rampcli.files.records import ANY, read_json
from rampcli.launch.doctor.check import Check, NotOk, Status
from rampcli.launch.elastic import World
from rampcli.launch.environment import without_outer_launcher
from rampcli.launch.protocol import launcher_of
from rampcli.launch.run import write_run_files
from rampcli.launch.start_checks import disk_space
from rampcli.launch.supervise import wait_for_orphans
from rampcli.launch.workers import WorkerLog
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import StopSignals, die_with, signal_name
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import read_ranks
from rampcli.runs.rows import read_rows
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.optim import OptimConfig
from rampcli.settings.trainer import Accelerator, TrainerConfig

ALL_REDUCE = "all-reduce"
CHECKED_RECIPE = "llama3_tiny"
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
MEASURE = "rampcli.worker.speed_rank"
"""Program of the ranks that measure. It reads `ORDER` and writes `ANSWER`."""
ORDER, ANSWER = "order.json", "answer.json"
WATCH_STEPS_S = 0.02
"""Seconds between two looks at a run, which is to be killed before it ends."""
MOST_LINES = 40
"""Lines of each log that a report quotes."""


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
        return resolve(apply_overrides(llm.from_factory(CHECKED_RECIPE), self._words(settings)))

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
            settings: laid over `SETTINGS`.
            kill_when: whether the command and its workers are to be killed now.

        Raises:
            RampcliError: the command failed, workers crashed and were restarted, or it has not
                ended within `limit_s` seconds. Its notes quote the logs.
            NotOk: a stop signal arrived.
        """
        run, log = RunDirectory(self.folder / name), self.folder / f"{name}.log"
        words = self._words({**settings, "run_dir": name})
        with log.open("ab") as output:
            command = subprocess.Popen(
                python_command("rampcli", "pretrain", "--factory", CHECKED_RECIPE, *words),
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
                rows = (
                    read_rows(run.events) if run.events.exists() else ()
                )  # it may be killed early
                if crashes := [row for row in rows if row.get("exit_code")]:
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
        """Measures speed on the ranks that a run with these settings would have.

        The ranks run the program `MEASURE` and do not train.

        Args:
            name: name of their run directory, in `folder`.
            settings: laid over `SETTINGS`.
            order: what to measure, see `rampcli.worker.speed`. Written to the file `ORDER`.

        Returns:
            The content of the file `ANSWER`.

        Raises:
            RampcliError: a rank failed, or they have not ended within `limit_s` seconds. Its notes
                quote the logs.
            NotOk: a stop signal arrived.
            UsageError: this machine has too few GPUs, or other runs use them.
        """
        run, resolved = RunDirectory(self.folder / name), self.resolved(settings)
        launcher, log = launcher_of(resolved.config), run.logs / "measure.log"
        write_run_files(run, resolved, [])
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
                raise NotOk(Status.not_run, "interrupted")
            if time.monotonic() > deadline:
                ranks = read_ranks(run)
                deeds = [
                    f"; rank {rank.rank}: {rank.doing} for {rank.doing_s:.0f} s"
                    for rank in ranks.behind or ranks.known
                ]
                raise RampcliError(f"did not end within {limit_s:g} s{''.join(deeds)}")
            time.sleep(WATCH_STEPS_S)

    @contextmanager
    def _logs_in_errors(self, run: RunDirectory, log: Path) -> Iterator[None]:
        try:
            yield
        except RampcliError as error:
            for each in sorted({log, *run.logs.glob("*.log")}):
                lines = WorkerLog(each, from_start=True).lines()
                error.add_note("\n".join((f"{each.name}:", *lines[-MOST_LINES:])))
            raise


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How large the checks are.

    Attributes:
        small: settings of the model whose losses are compared.
        steps, resumed_steps: steps of a run with one mesh, and of a run that is killed.
        large: models for memory and speed, and their micro batch size. The first one that fits
            into a GPU is used.
        timed: numbers of micro batches per step, in ascending order, and the steps to time with
            each.
        matrix: rows of the square matrices that are multiplied.
        numbers: fp32 numbers that are reduced over ranks.
        limit_s, long_limit_s: time limits of a small and of a large model's processes.
    """

    small: Settings = field(
        default_factory=lambda: {
            ModelConfig.num_layers: 4,
            DataConfig.sequence_length: 128,
            OptimConfig.warmup_samples: 1,
        }
    )
    steps: int = 4
    resumed_steps: int = 60
    large: tuple[tuple[str, int], ...] = (("llama32_1b", 2), ("qwen3_0p6b", 1), ("gpt3_126m", 1))
    sequence_length: int = 4096
    timed: tuple[tuple[int, int], tuple[int, int]] = ((1, 24), (8, 10))
    compile: bool = True
    matrix: int = 8192
    numbers: int = 2**26
    limit_s: float = 180.0
    long_limit_s: float = 600.0


@dataclass(kw_only=True, slots=True)
class GpuTest:
    """The GPUs of this machine, and what the checks have found so far.

    Attributes:
        reference: rows of the steps that the CPU has taken.
        flops_per_s: speed of bf16 matrix products on the slowest GPU, once it is known.
        statuses: results so far, by name.
    """

    processes: Processes
    gpus: int
    sizes: Sizes = field(default_factory=Sizes)
    reference: list[dict[str, Any]] = field(default_factory=list)
    flops_per_s: float | None = None
    statuses: dict[str, Status] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks that train together: the largest power of two, or 1 if all-reduces fail."""
        works = self.statuses.get(ALL_REDUCE) is Status.ok
        return largest_power_of_two(self.gpus) if works else 1

    def large_model(self, ranks: int) -> tuple[Settings, int]:
        """Returns the settings of the largest model that fits, and its micro batch size.

        Raises:
            NotOk: no model fits into a GPU, or no checkpoint on the disk.
        """
        for model, micro in self.sizes.large:
            settings: Settings = {
                "model": model,
                "data": "mock",
                DataConfig.sequence_length: self.sizes.sequence_length,
                DataConfig.micro_batch_size: micro,
                TrainerConfig.devices: ranks,
            }
            resolved = self.processes.resolved(
                {
                    **settings,
                    ModelConfig.global_batch_size: 2 * micro * ranks,
                    TrainerConfig.max_steps: 1,
                }
            )
            memory_bytes = device_memory_bytes(resolved.config)
            needed = stage_memory(resolved.phases[0], fullest_stage(resolved)).peak_bytes
            if memory_bytes is None or needed <= usable_bytes(resolved.config, memory_bytes):
                break
        else:
            finding = f"even {model} needs {shorten_bytes(needed)} per GPU (estimate)"
            raise NotOk(Status.not_run, finding)
        space = disk_space(resolved)
        if not space.fitting:
            raise NotOk(Status.not_run, space.describe())
        return settings, micro


def largest_power_of_two(number: int) -> int:
    """Returns the largest power of two up to a number."""
    return 1 << (number.bit_length() - 1)


class GpuReport:
    """A Markdown file that always holds the results so far.

    Attributes:
        path: file in the current folder. No other file is overwritten.

    Raises:
        OSError: the folder is not writable.
    """

    def __init__(self) -> None:
        self.path = Path(time.strftime("doctor-gpu-%Y%m%d-%H%M%S.md"))
        self._began = time.strftime("%Y-%m-%d %H:%M:%S %z")
        self._file = self.path.open("x", encoding="utf-8")
        self.update([])

    def update(self, results: Sequence[Check]) -> None:
        """Writes the results so far."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(_text(results, began=self._began))
        self._file.flush()


def _text(results: Sequence[Check], *, began: str) -> str:
    lines = [
        "# rampcli doctor --gpu",
        "",
        f"rampcli {__version__}, {began}",
        "",
        "| check | result | seconds | finding |",
        "|---|---|---:|---|",
    ]
    for check in results:
        remedy = "" if check.remedy is None else f" Try: {check.remedy}"
        finding = visible(f"{check.finding}{remedy}").replace("|", "\\|")
        lines.append(f"| {check.name} | {check.status} | {check.seconds:.0f} | {finding} |")
    for check in results:
        if check.details:
            lines += ["", f"## {check.name}", ""]
            lines += [f"    {line}" for line in visible(check.details, keeps="\n").splitlines()]
    return "\n".join(lines) + "\n"
