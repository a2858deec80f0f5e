"""`rampcli compare`: several runs side by side, or what each needed to reach a loss."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.cli.options import AsJson, plot_of
from rampcli.cli.report import Html, Runs, find_runs, report, write_html
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.runs.record import RunRecord

Plot = Annotated[
    Path | None, plot_of("the runs, or with --target-loss steps and GPU-hours over the batch,")
]


def compare(
    runs: Runs,
    target_loss: Annotated[float | None, typer.Option(metavar="LOSS")] = None,
    html: Html = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs, or show what each needed to reach a loss.

    Args:
        target_loss: Show the steps, samples and hours that each run needed to reach this loss.
    """
    if target_loss is not None:
        _print_times(runs, target_loss, html=html, plot=plot, as_json=as_json)
        return
    if len(find_runs(runs)) < 2:
        raise UsageError(
            f"compare needs two runs or more, and {runs[0]} is one",
            remedy=f"rampcli report {runs[0]}, or name another run as well",
        )
    report(runs, html, plot, as_json)


def _print_times(
    words: Sequence[str], target: float, *, html: Path | None, plot: Path | None, as_json: bool
) -> None:
    """Prints when each run reached a loss, and the curve over their batch sizes."""
    from rampcli.cli.console import build_console, say
    from rampcli.cli.pictures import writing_picture
    from rampcli.report.batch_curve import batch_curve, curve_table
    from rampcli.report.target_loss import measure_notes, measure_of, target_table, time_to_target
    from rampcli.runs.differences import differing_settings
    from rampcli.runs.record import read_run, told_apart

    if not 0 < target < math.inf:
        raise UsageError(
            f"--target-loss {target:g} is not a loss above 0", remedy="--target-loss 3.5"
        )
    directories = find_runs(words)
    records = told_apart([read_run(directory) for directory in directories])
    _check_kinds(words, records)
    measure = measure_of(records)
    results = [time_to_target(record, target, measure) for record in records]
    curve = batch_curve(results, differing_settings([record.settings for record in records]))
    notes = (*measure_notes(records, measure), *curve.notes)
    if html is not None:
        write_html(directories, html)
    if plot is not None and curve.points:
        with writing_picture(plot):
            from rampcli.report.batch_plots import plot_batch_curve

            plot_batch_curve(curve.points, plot, title=f"{measure} <= {target:g}")
    if as_json:
        facts = {
            "target_loss": target,
            "measure": {"corpus": measure.corpus, "window_samples": measure.window_samples},
            "runs": [one.to_json() for one in results],
            "batches": [point.to_json() for point in curve.points],
            "notes": list(notes),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    say(
        build_console(),
        f"target: {measure} <= {target:g}",
        target_table(results, is_validated=measure.corpus is not None),
        *(("", curve_table(curve)) if curve.points else ()),
        *(f"note: {note}" for note in notes),
        *([] if html is None else [f"wrote {html}"]),
    )
    if plot is not None:
        drawn = f"wrote {plot}" if curve.points else "nothing to plot: no curve over the batch size"
        say(build_console(), drawn)


def _check_kinds(words: Sequence[str], records: Sequence["RunRecord"]) -> None:
    """Checks that there are runs, and that all of them are of pretraining."""
    if not records:
        raise UsageError(f"{words[0]} has no runs yet", remedy=f"rampcli report {words[0]}")
    for record in records:
        if record.unit != "samples":
            raise UsageError(
                f"{record.path} is a run of reinforcement learning, and its loss does not measure"
                " what it has learned",
                remedy=f"rampcli report {record.path}",
            )
