"""Training as a person sees it: progress while it runs, and at the end what came of it and how to go on."""

import shlex
from collections.abc import Sequence

from rich.console import Console

from rampcli.checkpoint.manifest import complete_checkpoints, consumed_samples
from rampcli.cli.console import build_console, say
from rampcli.cli.jobs import show_jobs
from rampcli.cli.progress import Progress
from rampcli.config.resolve import Resolved, resolve
from rampcli.config.schema import Config
from rampcli.errors import EXIT_INTERRUPTED, RampcliError, visible
from rampcli.launch import run as launch
from rampcli.launch.slurm import chain
from rampcli.report.tables import run_table, validations
from rampcli.run_directory import COMPLETE, STAGE_BOUNDARY, RunDirectory


def run(
    config: Config,
    *,
    one_stage: bool = False,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> launch.Outcome:
    """Train a configuration through its ramp, from where its run directory stands, and show how it goes.

    Args:
        config: from a recipe or `compose`; it is left as it is.
        one_stage: end at the next stage instead of starting it.
        command: the words that would do this again; the running script, if None.
        overrides: what was typed, for the run directory's overrides.txt.

    Raises:
        RampcliError: the configuration does not fit itself or this machine, or the workers failed.
    """
    resolved = resolve(
        config, consumed_samples_in=lambda path: consumed_samples(RunDirectory(path))
    )
    return train(resolved, one_stage=one_stage, command=command, overrides=overrides)


def train(
    resolved: Resolved,
    *,
    one_stage: bool = False,
    command: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
) -> launch.Outcome:
    """The same for a configuration that is resolved already.

    Raises:
        RampcliError: as `run`.
    """
    console = build_console()
    for note in (*resolved.plan.notes, *resolved.notes):
        say(console, f"note: {note}")
    with Progress(resolved.plan, console) as progress:
        outcome = launch.run(
            resolved, command=command, overrides=overrides, one_stage=one_stage, observer=progress
        )
    if progress.output_is_closed:
        raise _stopped_unread(outcome)
    _tell(outcome, console)
    return outcome


def _stopped_unread(outcome: launch.Outcome) -> RampcliError:
    saved = (
        f"with a checkpoint in {outcome.run.checkpoints}"
        if complete_checkpoints(outcome.run)
        else "before there was anything to save"
    )
    stopped = f"stopped after {outcome.state['consumed_samples']:,} samples, {saved}"
    error = RampcliError(
        f"nobody reads the output any more; {stopped}",
        remedy="the same command, which resumes; >LOG keeps the output",
    )
    error.exit_code = EXIT_INTERRUPTED
    return error


def _tell(outcome: launch.Outcome, console: Console) -> None:
    if outcome.status == COMPLETE:
        console.print(run_table(outcome.run))
        if losses := validations(outcome.run):
            console.print(f"\nvalidation loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        say(console, f"run directory: {outcome.run.path}")
        if not outcome.started:
            say(console, "This run was complete already; another name= starts a new one.")
        return
    if outcome.status == "submitted":
        show_jobs(
            [
                chain.JobStatus(planned=job, job=job.job, state="PENDING", reason=None)
                for job in outcome.jobs
            ],
            console,
        )
        say(
            console,
            f"run directory: {outcome.run.path}\nsee how it goes with:\n  rampcli status {shlex.quote(str(outcome.run.path))}",
        )
        return
    consumed, ahead = f"{outcome.state['consumed_samples']:,} samples", outcome.state["next"]
    if outcome.status == STAGE_BOUNDARY:
        stage, batch, nodes = ahead["stage"] + 1, ahead["global_batch_size"], ahead["num_nodes"]
        say(
            console,
            f"stopped after {consumed}, before stage {stage}: batch {batch} on {nodes} node{'s' if nodes > 1 else ''}",
        )
    elif complete_checkpoints(outcome.run):
        say(console, f"stopped after {consumed}, with a checkpoint in {outcome.run.checkpoints}")
    else:
        say(console, "stopped before there was anything to save")
    say(console, f"go on with:\n  {visible(str(ahead['command']))}")
