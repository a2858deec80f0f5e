"""`rampcli ramps`: lists published batch ramps, and prints the words that plan one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rampcli.cli.options import AsJson, plot_of
from rampcli.errors import UsageError, visible

if TYPE_CHECKING:
    from rampcli.planning.published_ramps import PublishedRamp

MOST_IN_ROW, MOST_ALONE = 3, 6
"""Most batches of a ramp in the table and on its own. The middle of a longer one is left out."""


def ramps(
    ramp: Annotated[str | None, typer.Argument(metavar="NAME")] = None,
    sequence_length: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", min=1)] = None,
    plot: Annotated[Path | None, plot_of("the batch over trained tokens")] = None,
    as_json: AsJson = False,
) -> None:
    """List published batch ramps, or show how to plan one.

    Args:
        ramp: Show this ramp, and how to plan it.
        sequence_length: Plan samples of N tokens, and as many tokens per batch.
        nodes: Plan for N nodes of 8 GPUs.
    """
    if ramp is None:
        for option, value in (
            ("--sequence-length", sequence_length),
            ("--nodes", nodes),
            ("--plot", plot),
        ):
            if value is not None:
                raise UsageError(
                    f"{option} needs the name of a ramp",
                    remedy=f"rampcli ramps palm_540b {option} {value}",
                )
        _list_ramps(as_json=as_json)
        return
    from rampcli.planning.published_ramps import UnpublishedError, published_ramp

    found = published_ramp(ramp)
    if found.unpublished is None and sequence_length is not None:
        found = found.at_length(sequence_length)
    if plot is not None and found.stages:
        from rampcli.cli.pictures import writing_picture
        from rampcli.report.plots import plot_tokens

        with writing_picture(plot):
            plot_tokens(*_tokens(found), plot, title=found.model)
    if as_json:
        typer.echo(json.dumps(_facts(found, nodes), indent=1))
    else:
        _show(found, nodes)
        if plot is not None and found.stages:
            typer.echo(visible(f"wrote {plot}"))
    if found.unpublished is not None:
        use = "planned" if plot is None else f"planned, nor drawn to {plot}"
        raise UnpublishedError(
            f"{found.name} cannot be {use}: the steps of its ramp are not published",
            remedy="rampcli ramps",
        )


def _list_ramps(*, as_json: bool) -> None:
    from rampcli.cli.console import build_console, say
    from rampcli.planning.published_ramps import published_ramps
    from rampcli.report.tables import build_table

    found = published_ramps().values()
    if as_json:
        typer.echo(json.dumps([_facts(one, None) for one in found], indent=1))
        return
    table = build_table("ramp", "batch", "plans", "certainty", left=("ramp", "batch", "certainty"))
    for one in found:
        plans = "no" if one.sizes is None else "yes"
        table.add_row(one.name, _batches(one, most=MOST_IN_ROW), plans, one.certainty)
    say(
        build_console(),
        table,
        "",
        "batch      in sequences, from a number of trained tokens on",
        "plans      no: the steps of the ramp are not published",
        "certainty  code: of a script or configuration; paper: of the authors' text;",
        "           secondary: of another text about it",
        "rampcli ramps NAME shows a ramp and the words that plan it",
    )


def _batches(ramp: "PublishedRamp", *, most: int) -> str:
    """Returns the batches of a ramp as text: `512, 1024 from 52.4B, 2048 from 189B`."""
    from rampcli.batch.quantities import shorten

    if ramp.sizes is None:
        return str(ramp.unpublished)
    texts = [
        f"{threshold.global_batch_size} from"
        f" {shorten(threshold.first_sample * (ramp.sequence_length or 0))}"
        if threshold.first_sample
        else str(threshold.global_batch_size)
        for threshold in ramp.sizes.distinct_thresholds()
    ]
    if len(texts) > most:
        texts = [*texts[: most - 2], "...", texts[-1]]
    return ", ".join(texts)


def _facts(ramp: "PublishedRamp", nodes: int | None) -> dict[str, Any]:
    """Returns a ramp as plain data.

    Without its steps, `stages` is empty, and `words` and `model_is_stand_in` are null.
    """
    return {
        "name": ramp.name,
        "model": ramp.model,
        "sequence_length": ramp.sequence_length,
        "optimizer": ramp.optimizer,
        "rate": ramp.rate,
        "source": ramp.source,
        "certainty": ramp.certainty,
        "unpublished": ramp.unpublished,
        "stages": [
            {
                "global_batch_size": stage.global_batch_size,
                "batch_tokens": batch_tokens,
                "first_step": stage.first_step,
                "first_token": first_token,
            }
            for stage, first_token, batch_tokens in zip(ramp.stages, *_tokens(ramp), strict=True)
        ],
        "words": ramp.words(nodes=nodes) if ramp.stages else None,
        "model_is_stand_in": ramp.recipe is None if ramp.stages else None,
    }


def _tokens(ramp: "PublishedRamp") -> tuple[list[int], list[int]]:
    """Returns the tokens before each stage, and those of a batch in it."""
    length = ramp.sequence_length or 0
    return (
        [stage.first_sample * length for stage in ramp.stages],
        [stage.global_batch_size * length for stage in ramp.stages],
    )


def _show(ramp: "PublishedRamp", nodes: int | None) -> None:
    from rampcli.cli.console import build_console, say
    from rampcli.planning.published_ramps import RAMP_RECIPE
    from rampcli.report.ramp_figure import ramp_figure

    console = build_console()
    length = "unknown" if ramp.sequence_length is None else f"{ramp.sequence_length:,} tokens"
    rows = {
        "model": ramp.model,
        "batch": _batches(ramp, most=MOST_ALONE),
        "sequence": length,
        "optimiser": ramp.optimizer,
        "rate": ramp.rate or "unknown",
        "source": ramp.source,
        "certainty": ramp.certainty,
    }
    say(console, ramp.name, "", *(f"{name:<12}{value}" for name, value in rows.items()))
    if not ramp.stages:
        return
    block = "#" if console.options.ascii_only else "█"
    say(console, "", *ramp_figure(*_tokens(ramp), width=min(console.width, 120), block=block))
    optimizer, of_run = (
        (f", and its optimiser for {ramp.optimizer}", "batches and steps")
        if ramp.known_optimizer is None
        else ("", "batches, steps and optimiser")
    )
    about = (
        f"plan it ({RAMP_RECIPE} stands for the model{optimizer}: only {of_run} are the run's,"
        " the rate is not):"
        if ramp.recipe is None
        else "plan it:"
    )
    command = " \\\n        ".join(ramp.words(nodes=nodes))
    say(console, "", about, "", f"    rampcli plan {command}")
