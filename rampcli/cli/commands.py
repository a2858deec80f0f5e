"""The commands. What they need is imported when they run, so that `--help` is fast and needs neither torch nor hydra."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.words import join_split_lists

if TYPE_CHECKING:
    from rampcli.config.schema import Config

Factory = Annotated[str, typer.Option("--factory", "-f", help="A recipe: llama3_8b, or 'llama3_8b(num_nodes=2)'.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings laid over the recipe.", show_default=False)]
ConfigDir = Annotated[Path | None, typer.Option("--config-dir", help="A folder of further config groups.", exists=True, file_okay=False)]


BARS_FROM_WIDTH = 100


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
    from rampcli.cli.training import run

    outcome = run(config, one_stage=one_stage, command=["rampcli", *sys.argv[1:]], overrides=words)
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


def _show(config: "Config", *, cfg: bool) -> None:
    from rampcli.cli.console import build_console
    from rampcli.config import snapshot
    from rampcli.config.resolve import resolve
    from rampcli.report.tables import plan_table

    resolved = resolve(config)
    if cfg:
        typer.echo(snapshot.to_yaml(resolved.config), nl=False)
        return
    console = build_console()
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
