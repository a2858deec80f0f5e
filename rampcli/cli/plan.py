"""`rampcli plan`: shows the stages of a run without starting it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.base import Base
from rampcli.cli.options import AsJson, Overrides, Retune, plot_of
from rampcli.errors import UsageError, visible

if TYPE_CHECKING:
    from rampcli.planning.run_plan import Resolved


def plan(
    base: Base,
    overrides: Overrides = None,
    as_json: AsJson = False,
    what_if: Annotated[list[str] | None, typer.Option(metavar="KEY=A,B,C")] = None,
    plot: Annotated[Path | None, plot_of("batch size and nodes")] = None,
    measured: Annotated[list[Path] | None, typer.Option(metavar="RUN_DIR", exists=True)] = None,
    show_dialects: Annotated[bool, typer.Option("--dialects")] = False,
    show_seesaw: Annotated[bool, typer.Option("--seesaw")] = False,
    seesaw_factor: Annotated[float | None, typer.Option(metavar="A")] = None,
    retune: Retune = False,
) -> None:
    """Show the stages of a run without starting it.

    Takes the same recipe and settings as pretrain. In each row, batch = micro x dp x accum: the
    micro batch size, the data-parallel ranks, and the micro batches that each of them accumulates.
    "from" is the number of samples consumed before the stage.

    Args:
        what_if: Compare plans for several values of a setting. Repeat it for combinations.
        measured: Use the throughput measured in an earlier run. Repeat it for several runs.
        show_dialects: Print the same batch as NeMo, Megatron Bridge, Megatron-LM and MaxText
            settings.
        show_seesaw: Grow the batch instead of decaying the learning rate.
        seesaw_factor: Factor by which --seesaw grows the batch. Default: 2.
    """
    from rampcli.cli.composing import compose_beside_recipe, with_measured
    from rampcli.config.layers import sources_named
    from rampcli.launch.start_checks import check_model_here

    words = overrides or []
    single = {
        "--plot": plot,
        "--dialects": show_dialects,
        "--seesaw": show_seesaw,
        "--seesaw-factor": seesaw_factor,
    }
    if what_if:
        from rampcli.cli.what_if import compare_plans

        for name, value in single.items():
            if value not in (None, False):
                raise UsageError(
                    f"--what-if compares several plans, but {name} takes a single one",
                    remedy=f"{name} without --what-if",
                )
        if not compare_plans(
            base,
            words,
            what_if,
            measured=measured or [],
            retunes=retune,
            as_json=as_json,
        ):
            raise typer.Exit(2)
        return
    resolved = compose_beside_recipe(base, words, retunes=retune)
    with sources_named(resolved.config):
        notes = check_model_here(resolved.config)
    if measured:
        resolved = with_measured(resolved, measured)
    lines: list[str] = []
    if seesaw_factor is not None and not show_seesaw:
        raise UsageError(
            "--seesaw-factor needs --seesaw", remedy=f"--seesaw --seesaw-factor {seesaw_factor:g}"
        )
    if show_seesaw:
        from rampcli.cli.seesaw import seesaw

        resolved, lines = seesaw(resolved, 2.0 if seesaw_factor is None else seesaw_factor, words)
    resolved = replace(resolved, notes=(*resolved.notes, *notes))
    if plot is not None:
        _draw(resolved, plot)
        lines.append(f"wrote {plot}")
    if show_dialects:
        from rampcli.cli.dialects import print_dialects

        print_dialects(resolved, as_json=as_json)
    else:
        print_plan(resolved, as_json=as_json)
        for line in () if as_json else lines:
            typer.echo(visible(line, keeps="\n"))


def print_plan(resolved: "Resolved", *, as_json: bool = False) -> None:
    """Prints the table and the summary of a plan, or its JSON."""
    if as_json:
        from rampcli.report.plan_json import plan_json

        typer.echo(json.dumps(plan_json(resolved), indent=1))
        return
    from rampcli.cli.console import build_console, say
    from rampcli.report.plan_tables import plan_summary, plan_table

    console = build_console()
    bars = not console.options.ascii_only
    table = plan_table(resolved, width=console.width, bars=bars)
    say(console, table, "", *plan_summary(resolved))


def _draw(resolved: "Resolved", path: Path) -> None:
    """Writes a picture of a plan."""
    from rampcli.cli.pictures import writing_picture
    from rampcli.settings.rl import unit_of

    with writing_picture(path):
        from rampcli.report.plots import plot_plan

        config = resolved.config
        plot_plan(resolved.plan_in_units, path, title=config.name, unit=unit_of(config))
