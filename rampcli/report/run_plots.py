"""Draws what runs have trained: batch size as planned and as trained, loss, and throughput."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rampcli.report.plots import new_figure, sample_ticks, save_figure
from rampcli.runs.decimation import bucket_edges, bucket_means
from rampcli.runs.record import RunRecord
from rampcli.runs.stages import Spans

STYLES = ("-", "--", ":", "-.")
MOST_POINTS = 2000
"""Points of a line. Of a longer run, the mean of neighbouring steps is drawn."""


def plot_runs(records: Sequence[RunRecord], path: Path) -> None:
    """Draws runs over their consumed samples, in greyscale for printing.

    Args:
        path: .svg or .png file to write or replace. The same runs give the same bytes.
    """
    figure = new_figure()
    figure.set_size_inches(8, 7.5)
    is_rl = any("reward" in record.metrics for record in records)
    labels = ["global batch size", "reward" if is_rl else "loss", "tokens/s"]
    panels = figure.subplots(3, 1, sharex=True)
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    for number, record in enumerate(records):
        style = {"color": str(0.6 * number / len(records)), "linestyle": STYLES[number % 4]}
        _draw_batch(panels[0], record, style, labelled=len(records) == 1)
        _draw(panels[1], record, "reward" if is_rl else "loss", style)
        _draw(panels[2], record, "tokens_per_s", style)
        panels[1].plot([], [], label=plain(record.name), **style)
    if len(records) == 1:
        panels[0].set_title(plain(records[0].name), fontsize=11, loc="left")
        panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    else:
        panels[1].legend(frameon=False, fontsize=9)
    panels[0].set_ylim(bottom=0)
    panels[0].locator_params(axis="y", integer=True)
    panels[2].set_ylim(bottom=0)
    panels[2].set_xlabel(f"consumed {records[0].unit}")
    sample_ticks(panels[2])
    save_figure(figure, path)


def _draw_batch(axes: Axes, record: RunRecord, style: dict[str, Any], *, labelled: bool) -> None:
    """Draws the batch size of each step, and the planned one behind it."""
    planned = record.plan["stages"]
    samples = _numbers(record, "consumed_samples")
    last = max([*samples[-1:], *(stage["first_sample"] for stage in planned), 1])
    edges = [stage["first_sample"] for stage in planned] + [last]
    if planned and labelled:
        stairs = [stage["global_batch_size"] for stage in planned]
        axes.stairs(stairs, edges, baseline=None, color="0.75", linewidth=5, label="planned")
    spans = Spans(record.metrics)
    if len(spans.starts):
        sizes = spans.global_batch_size
        axes.stairs(
            sizes,
            [*(samples[spans.starts] - sizes), samples[-1]],
            baseline=None,
            linewidth=1.5,
            label="trained" if labelled else None,
            **style,
        )


def _draw(axes: Axes, record: RunRecord, column: str, style: dict[str, Any]) -> None:
    samples, values = _numbers(record, "consumed_samples"), _numbers(record, column)
    if len(values):
        edges = bucket_edges(0, len(values), most=MOST_POINTS)
        samples, values = samples[edges[1:] - 1], bucket_means(values, edges)
        axes.plot(samples, values, linewidth=1.2, **style)


def _numbers(record: RunRecord, column: str) -> NDArray[Any]:
    return np.asarray(record.metrics.get(column, np.zeros(0)), dtype=float)


def plain(text: str) -> str:
    """Returns a name as matplotlib draws it, without reading it as mathematics."""
    return text.replace("$", r"\$")
