"""`rampcli pretrain`: shows progress, and at the end how to resume."""

import shlex
import time
from collections.abc import Sequence

from rich.console import Console

from rampcli.batch.quantities import counted
from rampcli.checkpoint.starting_weights import with_model_of_folder
from rampcli.cli.composing import resolve_from_checkpoint
from rampcli.cli.console import build_console, say
from rampcli.cli.jobs import jobs_table
from rampcli.cli.progress import Progress
from rampcli.config import snapshot
from rampcli.config.layers import PYTHON, Precedence, edited_stack, stack_of
from rampcli.errors import EXIT_INTERRUPTED, ErrorReport, RampcliError, UsageError, visible
from rampcli.launch import run as launch
from rampcli.launch.observer import Observer
from rampcli.launch.protocol import SUBMITTED, Outcome, launcher_of
from rampcli.launch.start_checks import disk_warnings
from rampcli.machine.lifeline import StopSignals
from rampcli.planning.run_plan import Resolved
from rampcli.report.overlap import overlap_result
from rampcli.report.phases import data_lines
from rampcli.report.tables import evaluation_line, profile_parts, validation_line
from rampcli.runs.directory import COMPLETE, STAGE_BOUNDARY, RunDirectory
from rampcli.runs.events import read_events
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.config import Config
from rampcli.settings.rl import is_rl


def run(
    config: Config,
    *,
    one_stage: bool = False,
    one_phase: bool = False,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Trains a configuration from its newest checkpoint, and prints progress.

    In the main thread, Ctrl-C, SIGTERM or the interrupt of a notebook's kernel saves and stops the
    run. In another thread, an observer can stop it.

    Args:
        config: configuration from a recipe or `compose`. It is not modified.
        one_stage: stop at the next stage boundary.
        one_phase: stop at the end of the phase.
        command: words of the command that resumes the run; None means the running script. A
            notebook records none.
        overrides: command-line overrides, recorded in the run directory's overrides.txt.
        observers: receive steps and events of a run on this machine. An exception in one of them
            stops the run, which saves first, and is raised here.

    Raises:
        RampcliError: the configuration is invalid or does not fit this machine, or the workers
            failed.
        Exception: an observer raised it.
    """
    report = ErrorReport()
    stack = edited_stack(config, PYTHON, Precedence.USER, report=report)
    resolved = resolve_from_checkpoint(with_model_of_folder(stack, report=report), report)
    return train(
        resolved,
        one_stage=one_stage,
        one_phase=one_phase,
        command=command,
        overrides=overrides,
        observers=observers,
    )


def train(
    resolved: Resolved,
    *,
    one_stage: bool = False,
    one_phase: bool = False,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    console: Console | None = None,
    signals: StopSignals | None = None,
) -> Outcome:
    """Trains a configuration that is already resolved. The other arguments are those of `run`.

    `console` receives progress instead of standard output. A run in another thread than the main
    one stops at `signals`.

    Raises:
        RampcliError: as `run`, or standard output was closed while the run trained.
        Exception: an observer raised it.
    """
    console = console or build_console()
    _load_reward_function(resolved, console)
    lines = [line for one in resolved.retunings for line in one.lines()]
    notes = (*resolved.plan.notes, *resolved.notes, *disk_warnings(resolved))
    if lines := [*lines, *(f"note: {note}" for note in notes)]:
        # Written at once: only `Progress` notices a reader that goes after the first line.
        say(console, "\n".join(lines))
    began = time.time()
    with Progress(resolved, RunDirectory(resolved.run_dir), console) as progress:
        outcome = launch.run(
            resolved,
            command=command,
            overrides=overrides,
            one_stage=one_stage,
            one_phase=one_phase,
            observers=[progress, *observers],
            signals=signals,
        )
    if progress.output_is_closed:
        raise output_closed(_stopped(outcome))
    if outcome.status == COMPLETE:
        _print_complete(outcome, console)
    elif outcome.status == SUBMITTED:
        status = f"rampcli status {shlex.quote(str(outcome.run.path))}"
        facts = (*data_lines(resolved), f"run directory: {visible(str(outcome.run.path))}")
        say(console, jobs_table(outcome.jobs), *facts, f"follow its progress with:\n  {status}")
    else:
        _print_stopped(outcome, console, resolved)
    events = read_events(outcome.run.events)
    profiles = [row for row in events.profiles.values() if row["time"] >= began]
    say(console, *profile_parts(outcome.run.path, profiles))
    if outcome.observer_error is not None:
        raise outcome.observer_error
    return outcome


def _load_reward_function(resolved: Resolved, console: Console) -> None:
    """Loads a reward function of the user once, in a process of its own, before anything starts.

    The nodes of a cluster may have other packages than this machine. If such nodes run the
    function and it cannot be loaded here, this is only noted.
    """
    config = resolved.config
    if not is_rl(config):
        return
    from rampcli.rl.scorer import Scorer

    try:
        with Scorer(config.rl.reward, deadline_s=config.rl.reward_deadline_s):
            pass
    except UsageError as error:
        if launcher_of(config).runs_here:
            stack_of(config).name_sources(error)
            raise
        elsewhere = "this was tried here, and a job fails if its nodes cannot load it either"
        say(console, f"note: {error.message}; {elsewhere}")


def _consumed(outcome: Outcome) -> str:
    """Returns how much of its data a run has consumed."""
    return f"{outcome.state['consumed_samples']:,} {snapshot.unit(outcome.run.config)}"


def _stopped(outcome: Outcome) -> str:
    """Returns where a run stopped, and what it saved."""
    if complete_checkpoints(outcome.run):
        return f"stopped after {_consumed(outcome)}, with a checkpoint in {outcome.run.checkpoints}"
    return "stopped before there was anything to save"


def output_closed(stopped: str) -> RampcliError:
    """Returns the error of a command that has saved and stopped, as nobody reads its output."""
    error = RampcliError(
        f"standard output was closed; {stopped}",
        remedy="run the same command to resume; >LOG keeps its output",
    )
    error.exit_code = EXIT_INTERRUPTED
    return error


def _print_complete(outcome: Outcome, console: Console) -> None:
    # They import numpy, which a command needs at its end only.
    from rampcli.report.run_report import report_run
    from rampcli.report.run_text import stage_table
    from rampcli.runs.record import read_run

    record = read_run(outcome.run)
    report = report_run(record)
    for key, (trained, typed) in outcome.changes.settings.items():
        say(console, f"note: this run was trained with {key}={trained}, not {key}={typed}")
    if outcome.changes.unreadable is not None:
        say(console, f"note: {outcome.changes.unreadable}")
    say(console, stage_table(report))
    events = report.facts.events
    if found := events.validations:
        newest = max(points[-1]["step"] for points in found.values())
        ends = {
            corpus: (points[0], points[-1])
            for corpus, points in found.items()
            if points[-1]["step"] == newest  # a resume may have changed the corpora
        }
        say(console, f"\n{validation_line(ends)}")
        if None not in ends:
            say(console, validation_line(ends, "bits_per_byte"))
    if points := events.evaluations:
        say(console, f"\n{evaluation_line([points[0], events.newest['evaluation']])}")
    if (overlap := overlap_result(record.metrics)) is not None:
        say(console, overlap)
    say(console, f"run directory: {visible(str(outcome.run.path))}")
    if not outcome.started:
        say(console, "This run was already complete; choose another name= to start a new one.")


def _print_stopped(outcome: Outcome, console: Console, resolved: Resolved) -> None:
    """Prints where a run stopped and how to resume it."""
    coming = outcome.state["next"]
    if outcome.status == STAGE_BOUNDARY:
        phase = resolved.plan.phase_at(outcome.state["consumed_samples"]).name
        place = ("" if phase is None else f"phase {phase}, ") + f"stage {coming['stage'] + 1}"
        world = f"batch {coming['global_batch_size']} on {counted(coming['num_nodes'], 'node')}"
        say(console, f"stopped after {_consumed(outcome)}, before {place}: {world}")
    else:
        say(console, _stopped(outcome))
    if coming["command"] is None:
        say(console, "resume with rampcli.run and the same configuration")
    else:
        say(console, f"resume with:\n  {visible(coming['command'])}")
