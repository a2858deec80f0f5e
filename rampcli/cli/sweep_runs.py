"""The runs of a sweep: composed and checked together, then trained in turn or several at once."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console

from rampcli.batch.quantities import counted
from rampcli.batch.training_plan import StagePlan
from rampcli.cli.base import Base
from rampcli.cli.composing import (
    check_runs_differ,
    compose_combination,
    folder_of_sweep,
    keys_of_files,
)
from rampcli.cli.console import build_console, say
from rampcli.cli.training import output_closed, train
from rampcli.config import snapshot
from rampcli.config.layers import COMMAND_LINE, placed, sources_named, stack_of
from rampcli.config.phases import refuse_rl
from rampcli.config.reading import join_split_lists
from rampcli.config.sweeps import Combination, combinations
from rampcli.errors import (
    EXIT_INTERRUPTED,
    ErrorReport,
    ForeignCheckpointError,
    RampcliError,
    UsageError,
    set_to,
    shown,
)
from rampcli.launch import run as launch
from rampcli.launch.elastic import World
from rampcli.launch.local.launcher import gpus_needed
from rampcli.launch.observer import Observer
from rampcli.launch.protocol import launcher_of
from rampcli.launch.start_checks import check, check_files
from rampcli.launch.status import read_status
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.lifeline import StopSignals, catch_stop_signals, exit_code_after
from rampcli.planning.run_plan import Resolved
from rampcli.report.sweep_plan import SweepRun
from rampcli.report.tables import validation_line
from rampcli.runs.differences import differing_settings
from rampcli.runs.directory import COMPLETE, RunDirectory
from rampcli.runs.event_kinds import WARNINGS
from rampcli.runs.manifest import newest_checkpoint
from rampcli.runs.sweep_folder import SweepFolder
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.facts import RESULT, VALIDATION
from rampcli.settings.trainer import TrainerConfig

MOST_COMBINATIONS = 3
"""Combinations that an error names at most."""
LOG = "progress.log"
"""File in the logs of a run with what it would have printed alone."""


def compose_sweep(
    base: Base, words: Sequence[str], *, starts: bool
) -> tuple[SweepFolder, list[SweepRun]]:
    """Composes and checks all runs of a sweep. Nothing is written.

    Args:
        base: what the words are laid over.
        words: `KEY=VALUE` words, some of which list several values.
        starts: also check this machine and the scripts of jobs.

    Raises:
        UsageError: all errors together; each names the combinations that it belongs to.
        ForeignCheckpointError: the folder holds runs of another configuration.
    """
    report = ErrorReport()
    joined, folder = join_split_lists(words, report=report), SweepFolder(Path())
    with report.noting():
        folder = SweepFolder(folder_of_sweep(base, joined))
    chosen = combinations(
        joined,
        among=base.folders(joined),
        also=keys_of_files(base, joined),
        report=report,
        varied_before={key for values in folder.read().values() for key in values},
    )
    errors = _Errors(report, chosen)
    composed = []
    for one in chosen:
        with errors.noting(one):
            resolved = compose_combination(base, one, folder.path)
            _check_kind(resolved)
            composed.append(resolved)
    errors.close()
    with placed(COMMAND_LINE):
        check_runs_differ(
            base, joined, [(one.values, each) for one, each in zip(chosen, composed, strict=True)]
        )
    for resolved in composed:
        folder.run_path(resolved.run_dir.name)
    _check_same_base(folder, chosen, composed)
    runs = []
    for one, resolved in zip(chosen, composed, strict=True):
        with errors.noting(one):
            if starts:
                check(resolved)
            else:
                check_files(resolved)
            complete = launch.is_trained(
                resolved, newest_checkpoint(RunDirectory(resolved.run_dir))
            )
            runs.append(SweepRun(combination=one, resolved=resolved, is_complete=complete))
    errors.close()
    return folder, runs


class _Errors:
    """Collects the errors of all runs. Each names its combinations, unless all runs have it."""

    def __init__(self, report: ErrorReport, combinations: Sequence[Combination]) -> None:
        self.report = report
        self.combinations = combinations
        self.found: dict[str, tuple[UsageError, list[Combination]]] = {}

    @contextmanager
    def noting(self, combination: Combination) -> Iterator[None]:
        """Collects usage errors that the block raises about a combination."""
        raised = ErrorReport()
        with raised.noting():
            yield
        for error in raised.errors:
            self.found.setdefault(str(error), (error, []))[1].append(combination)

    def close(self) -> None:
        """Raises the collected errors.

        Raises:
            UsageError: there is an error.
        """
        known = {*map(str, self.report.errors)}
        for text, (error, having) in self.found.items():
            if text in known:
                continue
            if named := name_combinations(having, self.combinations):
                error.add_context(f"with {named}")
            self.report.errors.append(error)
        self.report.close()


def _check_kind(resolved: Resolved) -> None:
    """Checks that a run pretrains and ends."""
    refuse_rl(
        resolved.config,
        "a sweep trains runs of pretraining, and this is one of reinforcement learning",
        remedy="rl=none, or rampcli rl for each run",
    )
    with sources_named(resolved.config):
        if resolved.plan.end_sample is None:
            raise UsageError(
                "a run without end keeps the next one from starting",
                keys=(TrainerConfig.max_steps, TrainerConfig.max_samples, TrainerConfig.max_tokens),
                remedy=set_to(TrainerConfig.max_steps, 1000),
            )


def name_combinations(some: Sequence[Combination], among: Sequence[Combination]) -> str:
    """Returns the values that some combinations have in common and others do not have.

    Empty if they are all combinations. If no values tell them apart, they are listed.
    """
    keys = among[0].values
    values = {key: list(dict.fromkeys(one.values[key] for one in some)) for key in keys}
    if len(some) == prod(map(len, values.values())):
        every = {key: {one.values[key] for one in among} for key in keys}
        return " ".join(
            f"{key}={','.join(of)}" for key, of in values.items() if len(of) < len(every[key])
        )
    rest = len(some) - MOST_COMBINATIONS
    listed = " or ".join(map(str, some[:MOST_COMBINATIONS]))
    return f"{listed} or {rest} more" if rest > 0 else listed


def _check_same_base(
    folder: SweepFolder, chosen: Sequence[Combination], composed: Sequence[Resolved]
) -> None:
    """Checks that runs in the folder have the same settings, apart from those that vary.

    Runs of a sweep are compared, so this includes settings that a single run may change when it
    resumes.
    """
    here = {one.folder: _deciding(each.config) for one, each in zip(chosen, composed, strict=True)}
    listed = folder.read()
    found = {}
    for name in dict.fromkeys([*listed, *here]):
        if (path := RunDirectory(folder.run_path(name)).config).is_file():
            found[name] = _deciding(snapshot.read(path))
    varied = {key for values in listed.values() for key in values} | {*chosen[0].values}
    if (effects := stack_of(composed[0].config).effects) is not None:
        varied |= {ours for key in varied for ours in effects.decides.get(key, ())}
    for several in (here, found):
        varied |= {*differing_settings([*several.values()])}
    first = next(iter(here.values()))
    for name, settings in found.items():
        mine, keys = (here[name], settings) if name in here else (first, {*settings} - varied)
        differing = [key for key in keys if key in mine and settings[key] != mine[key]]
        if differing:
            shown_ones = [
                f"{key}={shown(settings[key])} (here {shown(mine[key])})" for key in differing[:3]
            ]
            error = ForeignCheckpointError(
                f"{folder.path} holds runs of another configuration:"
                f" {', '.join(shown_ones)}{', ...' if len(differing) > 3 else ''}",
                keys=tuple(differing),
                remedy="the settings of those runs, or another name= or run_dir=",
            )
            with sources_named(composed[0].config):
                raise error


def _deciding(config: Config) -> dict[str, object]:
    """Returns the settings that decide what a run trains, by dotted key."""
    return {key: value for key, value in leaves(config) if changes(key, RESULT | VALIDATION)}


def run_all(
    runs: Sequence[SweepRun],
    command: Sequence[str],
    console: Console,
    *,
    what: str = "the sweep",
    again: str = "the same command",
    at_once: int = 1,
) -> int:
    """Starts the runs that are not complete, and returns the exit code.

    A run that fails does not keep the others from starting. A stop signal ends the sweep.

    Args:
        what: what the runs are called together.
        again: the command that resumes them.
        at_once: most runs that train at once. Several are trained on this machine only.

    Raises:
        RampcliError: workers did not save after a stop signal, or standard output was closed.
    """
    failed, code, place = 0, 0, ""
    with catch_stop_signals() as signals:
        if at_once > 1:
            left = [run for run in runs if not _is_left_alone(run, f"{run.combination}", console)]
            failed, code = _train_at_once(left, command, console, at_once=at_once, signals=signals)
        for number, run in enumerate(runs if at_once == 1 else (), start=1):
            place = f"run {number} of {len(runs)}"
            try:
                code = _start(run, f"{place}: {run.combination}", command, console)
            except RampcliError as error:
                if _ends_all(error, signals):
                    raise
                say(console, str(error))
                failed += 1
            if code or signals.signal is not None:
                break
        if code or signals.signal is not None:
            say(console, f"{what} stopped{place and f' at {place}'}; {again} resumes it")
            return code or exit_code_after(signals)
    if failed:
        say(console, f"{failed} of {len(runs)} runs failed; {again} starts them again")
    return 1 if failed else 0


def _start(run: SweepRun, title: str, command: Sequence[str], console: Console) -> int:
    """Trains a run, or submits its jobs, unless it is complete or something else trains it.

    Returns 0, or the exit code of a run that was interrupted.
    """
    if _is_left_alone(run, title, console):
        return 0
    words = run.combination.words
    if launcher_of(run.resolved.config).runs_here:
        say(console, f"\n{title}")
        return train(run.resolved, command=command, overrides=words, console=console).exit_code
    jobs = launch.run(run.resolved, command=command, overrides=words).jobs
    say(console, f"{title}: submitted {', '.join(job.job or '' for job in jobs)}")
    return 0


def _is_left_alone(run: SweepRun, title: str, console: Console) -> bool:
    """Returns whether a run is complete or something else trains it, and prints it if so."""
    status = None if run.is_complete else read_status(run.directory)
    if status is None:
        say(console, f"{title} is complete")
    elif any(job.is_active for job in status.jobs):
        say(console, f"{title} has jobs in the queue")
    elif status.supervisor is not None:
        say(console, f"{title} is trained by {status.supervisor}")
    else:
        return False
    return True


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


def _train_at_once(
    runs: Sequence[SweepRun],
    command: Sequence[str],
    console: Console,
    *,
    at_once: int,
    signals: StopSignals,
) -> tuple[int, int]:
    """Trains runs, at most `at_once` at a time. Each prints its progress to `LOG`.

    A run that fails does not stop the others. A stop signal stops all of them, and so does an
    error of this program.

    Returns:
        How many runs failed, and the exit code of a run that was interrupted, or 0.
    """

    def train_one(run: SweepRun) -> int | RampcliError:
        if signals.signal is not None:
            return 0
        try:
            return _train(run, command, console, signals)
        except RampcliError as error:
            if not _ends_all(error, signals):
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
        raise output_closed("the runs have saved and stopped") from error
    errors = [one for one in ended if isinstance(one, RampcliError)]
    for failure in errors:
        if _ends_all(failure, signals):
            raise failure
    codes = [one for one in ended if isinstance(one, int)]
    return len(errors), max(codes, default=0)


def _ends_all(error: RampcliError, signals: StopSignals) -> bool:
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
