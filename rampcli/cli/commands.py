"""The commands. What they need is imported when they run, so that `--help` is fast and needs neither torch nor hydra."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.words import join_split_lists

if TYPE_CHECKING:
    from rich.console import Console

    from rampcli.config.schema import Config
    from rampcli.launch.run import Outcome

Factory = Annotated[str, typer.Option("--factory", "-f", help="A recipe: llama3_8b, or 'llama3_8b(num_nodes=2)'.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings laid over the recipe.", show_default=False)]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="A folder of further config groups.", exists=True, file_okay=False)]


BARS_FROM_WIDTH = 100
PIPE_WIDTH = 160


def pretrain(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compose, check and print the plan; start nothing.")] = False,
    cfg: Annotated[bool, typer.Option("--cfg", help="Print the composed configuration and exit.")] = False,
    one_stage: Annotated[bool, typer.Option("--one-stage", help="End at the next stage, and say how to go on.")] = False,
) -> None:
    """Train a recipe through its ramp. The same command on the same run directory goes on where it stopped."""
    words = join_split_lists(overrides or [])
    config = _compose(factory, words, config_dir)
    if cfg or dry_run:
        _show(config, cfg=cfg)
        return
    from rampcli.cli.progress import Progress
    from rampcli.config.resolve import resolve
    from rampcli.launch.run import run

    command = ["rampcli", *sys.argv[1:]]
    console = _console()
    with Progress(resolve(config).plan, console) as progress:
        outcome = run(config, command=command, overrides=words, one_stage=one_stage, observer=progress)
    _tell_outcome(outcome, console)
    raise typer.Exit(outcome.exit_code)


def plan(
    factory: Factory,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show the stages of a run: batch, nodes, accumulation, samples and steps. Takes the arguments of pretrain."""
    config = _compose(factory, join_split_lists(overrides or []), config_dir)
    if as_json:
        from rampcli.config.resolve import resolve

        typer.echo(json.dumps(resolve(config).plan.to_json(), indent=1))
    else:
        _show(config, cfg=False)


def _compose(factory: str, words: list[str], config_dir: Path | None) -> "Config":
    from rampcli import llm
    from rampcli.config.compose import lay_over

    return lay_over(llm.from_factory(factory), words, config_dir=config_dir)


def _console() -> "Console":
    """Standard output; a file or a pipe has no width to fit into."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _show(config: "Config", *, cfg: bool) -> None:
    from rampcli.config import snapshot
    from rampcli.config.resolve import resolve
    from rampcli.report.tables import plan_table

    resolved = resolve(config)
    if cfg:
        typer.echo(snapshot.to_yaml(resolved.config), nl=False)
        return
    console = _console()
    console.print(plan_table(resolved.plan, bars=console.width >= BARS_FROM_WIDTH))
    end = resolved.plan.end_sample
    if end is not None:
        last = resolved.plan.stages[-1]
        steps = last.first_step + (last.steps or 0)
        console.print(
            f"\n{end:,} samples, {steps:,} steps, {end * resolved.plan.sequence_length:,} tokens; run directory {resolved.run_dir}"
        )
    for note in resolved.plan.notes:
        console.print(f"note: {note}")


def _tell_outcome(outcome: "Outcome", console: "Console") -> None:
    from rampcli.report.tables import run_table, validations

    path = outcome.run.path
    if outcome.status == "complete":
        console.print(run_table(outcome.run))
        if losses := validations(outcome.run):
            console.print(f"\nvalidation loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        console.print(f"run directory: {path}")
        if not outcome.started:
            console.print("This run was complete already; another name= starts a new one.")
        return
    reached = f"stopped after {outcome.state['consumed_samples']:,} samples"
    if outcome.status == "stage_boundary":
        ahead = outcome.state["next"]
        console.print(f"{reached}, before stage {ahead['stage'] + 1}: batch {ahead['global_batch_size']} on {ahead['num_nodes']} node(s)")
    elif outcome.status == "preempted":
        console.print(f"{reached}, with a checkpoint in {path}")
    else:
        console.print(f"interrupted; the newest checkpoint in {path} is as it was")
    console.print(f"go on with:\n  {outcome.state['next']['command']}", soft_wrap=True)
