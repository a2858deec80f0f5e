"""Trains several runs at once on this machine, each supervised by a thread of its own."""

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

from rich.console import Console

from rampcli.batch.quantities import counted
from rampcli.batch.training_plan import StagePlan
from rampcli.cli.console import build_console, say
from rampcli.cli.training import train
from rampcli.config.layers import sources_named
from rampcli.errors import EXIT_INTERRUPTED, RampcliError, UsageError
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.launch.protocol import launcher_of
from rampcli.launch.resources import gpus_needed
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.lifeline import StopSignals
from rampcli.report.sweep_plan import SweepRun
from rampcli.report.tables import validation_line
from rampcli.runs.directory import COMPLETE
from rampcli.runs.event_kinds import WARNINGS
from rampcli.settings.trainer import TrainerConfig

LOG = "progress.log"
"""File in the logs of a run with what it would have printed alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How several runs ended.

    Attributes:
        failed: number of runs that failed.
        code: exit code of a run that was interrupted, or 0.
        place: where they stopped, in words that follow "stopped".
    """

    failed: int
    code: int = 0
    place: str = ""


class EventLines(Observer):
    """Prints one line for each start, validation and warning of a run, with its name."""

    def __init__(self, name: str, console: Console) -> None:
        self.name, self.console = name, console

    def say(self, text: str) -> None:
        """Prints a line."""
        say(self.console, f"{self.name}: {text}")

    def on_start(self, stage: StagePlan, world: World, *, gpus: int) -> None:
        """Prints the batch and the processes."""
        device = counted(gpus, "GPU") if gpus else f"{counted(world.ranks, 'process')} on CPU"
        self.say(f"starting, batch {stage.global_batch_size:,}, {device}")

    def on_event(self, row: dict[str, Any]) -> None:
        """Prints validation losses and warnings."""
        if row["event"] == "validation":
            line = validation_line({row.get("corpus"): [row]}, digits=4)
            self.say(f"{line} after {row['consumed_samples']:,} samples")
        elif row["event"] in WARNINGS:
            self.say(f"warning: {row['reason']}")


def check_at_once(runs: Sequence[SweepRun], at_once: int, *, starts: bool) -> None:
    """Checks that the launcher and the GPUs of this machine allow several runs at once.

    Args:
        runs: runs of one launcher.
        starts: check the GPUs too.

    Raises:
        UsageError: they do not.
    """
    config = runs[0].resolved.config
    if at_once > 1 and not launcher_of(config).runs_here:
        raise UsageError(
            f"--at-once {at_once} is for runs on this machine; those of"
            f" launch={config.launch.launcher} are jobs, which its queue runs at once",
            remedy="--at-once 1",
        )
    most = min(at_once, sum(not run.is_complete for run in runs))
    if most < 2 or not starts:
        return
    gpus = len(visible_gpus())
    needed = max(gpus_needed(run.resolved.config, run.resolved.plan) for run in runs)
    if most * needed > gpus:
        with sources_named(config):
            raise UsageError(
                f"--at-once {at_once}: each run needs {counted(needed, 'GPU')}, and {most} at once"
                f" need {most * needed}; this machine has {gpus}",
                keys=(TrainerConfig.num_nodes, TrainerConfig.devices),
                remedy=f"--at-once {max(1, gpus // needed)}",
            )


def train_at_once(
    runs: Sequence[SweepRun],
    command: Sequence[str],
    console: Console,
    *,
    at_once: int,
    signals: StopSignals,
) -> Ended:
    """Trains runs, at most `at_once` at a time. Each prints its progress to `LOG`.

    A run that fails does not stop the others. A stop signal stops all of them, and so does an
    error of this program.

    Args:
        command: words of the command that resumes them.
        signals: stop signals that the main thread collects.

    Raises:
        RampcliError: as `run_all`.
    """

    def train_one(run: SweepRun) -> int | RampcliError:
        if signals.signal is not None:
            return 0
        try:
            return _train(run, command, console, signals)
        except RampcliError as error:
            if not ends_all(error, signals):
                say(console, f"{run.combination}: {error}")
            return error
        except BaseException:
            if signals.signal is None:
                signals.note(signal.SIGTERM)
            raise

    try:
        with ThreadPoolExecutor(at_once) as pool:
            ended = list(pool.map(train_one, runs))
    except BrokenPipeError as error:
        closed = RampcliError(
            "standard output was closed; the runs have saved and stopped",
            remedy="run the same command to resume; >LOG keeps its output",
        )
        closed.exit_code = EXIT_INTERRUPTED
        raise closed from error
    errors = [one for one in ended if isinstance(one, RampcliError)]
    for failure in errors:
        if ends_all(failure, signals):
            raise failure
    codes = [one for one in ended if isinstance(one, int)]
    return Ended(failed=len(errors), code=max(codes, default=0))


def ends_all(error: RampcliError, signals: StopSignals) -> bool:
    """Returns whether an error of a run is about all runs: it was to stop, and did not save."""
    return signals.signal is not None or error.exit_code == EXIT_INTERRUPTED


def _train(run: SweepRun, command: Sequence[str], console: Console, signals: StopSignals) -> int:
    """Trains a run, and returns its exit code."""
    directory, lines = run.directory, EventLines(str(run.combination), console)
    directory.make_folder(directory.logs)
    log = directory.open_to_append(directory.logs / LOG)
    with TextIOWrapper(log, encoding="utf-8", line_buffering=True) as file:
        outcome = train(
            run.resolved,
            command=command,
            overrides=run.combination.words,
            observers=[lines],
            console=build_console(file=file),
            signals=signals,
        )
    consumed = outcome.state["consumed_samples"]
    word = "complete" if outcome.status == COMPLETE else "stopped"
    lines.say(f"{word} after {consumed:,} samples")
    return outcome.exit_code
