"""Training as a person sees it: progress while it runs, and at the end what came of it and how to go on."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rampcli.cli.console import build_console
from rampcli.cli.progress import Progress
from rampcli.config.resolve import resolve
from rampcli.config.schema import Config
from rampcli.launch import run as launch
from rampcli.report.tables import run_table, validations


def run(config: Config, *, one_stage: bool = False, command: Sequence[str] | None = None, overrides: Sequence[str] = ()) -> launch.Outcome:
    """Train a configuration through its ramp, from where its run directory stands, and show how it goes.

    Args:
        config: from a recipe or `compose`; it is left as it is.
        one_stage: end at the next stage instead of starting it.
        command: the words that would do this again; the running script, if None.
        overrides: what was typed, for the run directory's overrides.txt.

    Raises:
        RampcliError: the configuration does not fit itself or this machine, or the workers failed.
    """
    console = build_console()
    resolved = resolve(config)
    for note in resolved.plan.notes:
        _say(console, f"note: {note}")
    with Progress(resolved.plan, console) as progress:
        outcome = launch.run(resolved, command=command, overrides=overrides, one_stage=one_stage, observer=progress)
    _tell(outcome, console)
    return outcome


def _tell(outcome: launch.Outcome, console: Console) -> None:
    if outcome.status == "complete":
        console.print(run_table(outcome.run))
        if losses := validations(outcome.run):
            console.print(f"\nvalidation loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        _say(console, f"run directory: {outcome.run.path}")
        if not outcome.started:
            _say(console, "This run was complete already; another name= starts a new one.")
        return
    consumed, ahead = f"{outcome.state['consumed_samples']:,} samples", outcome.state["next"]
    if outcome.status == "stage_boundary":
        stage, batch, nodes = ahead["stage"] + 1, ahead["global_batch_size"], ahead["num_nodes"]
        _say(console, f"stopped after {consumed}, before stage {stage}: batch {batch} on {nodes} node{'s' if nodes > 1 else ''}")
    elif outcome.run.complete_checkpoints():
        _say(console, f"stopped after {consumed}, with a checkpoint in {outcome.run.checkpoints}")
    else:
        _say(console, "stopped before there was anything to save")
    _say(console, f"go on with:\n  {ahead['command']}")


def _say(console: Console, text: str) -> None:
    """One line, however long: paths and commands are there to be copied."""
    console.print(Text(text), soft_wrap=True)
