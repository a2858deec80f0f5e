"""Draws steps and GPU-hours to a target loss over the batch size."""

from collections.abc import Sequence
from pathlib import Path

from rampcli.report.batch_curve import BatchPoint
from rampcli.report.plots import new_figure, save_figure


def plot_batch_curve(points: Sequence[BatchPoint], path: Path, *, title: str) -> None:
    """Draws the points of a curve, in greyscale for printing.

    Args:
        points: in order of their batch size, at least two.
        path: .svg or .png file to write or replace. The same points give the same bytes.
        title: line above the picture.
    """
    figure = new_figure()
    steps, cost = figure.subplots(1, 2)
    sizes = [point.global_batch_size for point in points]
    line = {"color": "black", "linewidth": 1.2, "marker": "o", "markersize": 4}
    counts = [point.steps for point in points]
    steps.plot(sizes, counts, **line, label="measured")
    first = points[0].steps * sizes[0]
    steps.plot(
        sizes, [first / size for size in sizes], color="0.6", linestyle="--", label="1 / batch"
    )
    steps.set_ylabel("steps to the target")
    steps.set_yscale("log")
    steps.set_yticks(counts, [f"{count:,}" for count in counts])
    steps.legend(frameon=False, fontsize=9)
    timed = [
        (point.global_batch_size, point.device_s / 3600)
        for point in points
        if point.device_s is not None
    ]
    cost.plot([size for size, _ in timed], [spent for _, spent in timed], **line)
    cost.set_ylabel("GPU-hours to the target")
    cost.set_ylim(bottom=0)
    for axes in (steps, cost):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("global batch size")
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    steps.set_title(title, fontsize=11, loc="left", parse_math=False)
    save_figure(figure, path)
