"""Draws what runs have trained, and the losses of a sweep over a value that varies."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rampcli.batch.noise_scale import SCALE_COLUMNS
from rampcli.errors import visible
from rampcli.report.plots import new_figure, sample_ticks, save_figure
from rampcli.report.sweep_results import SweepResult, judged_loss
from rampcli.runs.decimation import bucket_edges, bucket_means
from rampcli.runs.metrics import GOALS, METRICS, measured_of
from rampcli.runs.record import RunRecord
from rampcli.runs.recorded_phases import has_several_lengths, length_at, tokens_at
from rampcli.runs.stages import Spans

SAMPLES_COLUMN, TOKENS_COLUMN = "consumed_samples", "consumed_tokens"
"""Columns over which runs are drawn."""
LINE_STYLES = ("-", "--", ":", "-.")
MOST_LINE_POINTS = 2000
"""Points of a line. Of a longer run, the mean of neighbouring steps is drawn."""
LOG_AXIS_FACTOR = 10
"""Values that span this factor or more get a logarithmic axis. Learning rates always do."""


def plot_runs(records: Sequence[RunRecord], path: Path) -> None:
    """Draws runs over their consumed samples, in greyscale for printing.

    With phases, samples may differ in length. Then all runs are drawn over their tokens, and their
    batches in tokens, if these are known.

    Args:
        path: .svg or .png file to write or replace. The same runs give the same bytes.
    """
    figure = new_figure()
    figure.set_size_inches(8, 7.5)
    goal = measured_of(GOALS, {name for record in records for name in record.metrics})[0]
    drawn = (goal, METRICS["tokens_per_s"])
    labels = ["global batch size", *(str(metric.column) for metric in drawn)]
    panels = figure.subplots(3, 1, sharex=True)
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    has_noise, over = False, _axis(records)
    for number, record in enumerate(records):
        style = {"color": str(0.6 * number / len(records)), "linestyle": LINE_STYLES[number % 4]}
        _draw_batch(panels[0], record, style, over=over, labelled=len(records) == 1)
        has_noise |= _draw_noise_scale(
            panels[0], record, style, over=over, labelled=len(records) == 1
        )
        for axes, metric in zip(panels[1:], drawn, strict=True):
            _draw(axes, record, metric.name, style, over=over)
        panels[1].plot([], [], label=plain(record.name), **style)
    if len(records) == 1:
        panels[0].set_title(plain(records[0].name), fontsize=11, loc="left")
        panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    else:
        panels[1].legend(frameon=False, fontsize=9)
    if has_noise:  # which is often far above the batch
        panels[0].set_yscale("log")
        panels[0].set_ylabel("global batch size,\nnoise scale")
    else:
        panels[0].set_ylim(bottom=0)
        panels[0].locator_params(axis="y", integer=True)
    panels[2].set_ylim(bottom=0)
    panels[2].set_xlabel(f"consumed {'tokens' if over == TOKENS_COLUMN else records[0].unit}")
    if over == TOKENS_COLUMN:
        panels[0].set_ylabel(f"{panels[0].get_ylabel()}\n(tokens)")
    sample_ticks(panels[2])
    save_figure(figure, path)


def _axis(records: Sequence[RunRecord]) -> str:
    """Returns the column over which runs are drawn."""
    has_tokens = all(
        record.unit == "samples" and TOKENS_COLUMN in record.metrics for record in records
    )
    differs = has_several_lengths(*(record.plan for record in records))
    return TOKENS_COLUMN if differs and has_tokens else SAMPLES_COLUMN


def _draw_batch(
    axes: Axes, record: RunRecord, style: dict[str, Any], *, over: str, labelled: bool
) -> None:
    """Draws the batch size of each step, and the planned one behind it."""
    planned, plan = record.plan["stages"], record.plan
    places = _numbers(record, over)

    def place(samples: int) -> int:
        return samples if over == SAMPLES_COLUMN else tokens_at(plan, samples) or 0

    def size(stage: Mapping[str, Any]) -> int:
        return place(stage["first_sample"] + stage["global_batch_size"]) - place(
            stage["first_sample"]
        )

    last = max([*places[-1:], *(place(stage["first_sample"]) for stage in planned), 1])
    edges = [place(stage["first_sample"]) for stage in planned] + [last]
    if planned and labelled:
        stairs = [size(stage) for stage in planned]
        axes.stairs(stairs, edges, baseline=None, color="0.75", linewidth=5, label="planned")
    spans = Spans(record.metrics)
    if len(spans.starts):
        sizes, samples = spans.global_batch_size, _numbers(record, SAMPLES_COLUMN)
        if over == TOKENS_COLUMN:
            ends = zip(samples[spans.starts], sizes, strict=True)
            sizes = np.array([place(int(end)) - place(int(end - one)) for end, one in ends])
        axes.stairs(
            sizes,
            [*(places[spans.starts] - sizes), places[-1]],
            baseline=None,
            linewidth=1.5,
            label="trained" if labelled else None,
            **style,
        )


def _draw_noise_scale(
    axes: Axes, record: RunRecord, style: dict[str, Any], *, over: str, labelled: bool
) -> bool:
    """Draws the noise scale and its interval, and returns whether there is one.

    Where only the lower end of the interval is known, it is dotted.
    """
    columns = [_numbers(record, name) for name in (over, *SCALE_COLUMNS)]
    measured = np.isfinite(columns[2]) if len(columns[2]) else np.zeros(0, dtype=bool)
    if not measured.any():
        return False
    samples, scale, low, high = (column[measured] for column in columns)
    if over == TOKENS_COLUMN:
        consumed = _numbers(record, SAMPLES_COLUMN)[measured]
        lengths = np.array([length_at(record.plan, int(one)) or np.nan for one in consumed])
        scale, low, high = scale * lengths, low * lengths, high * lengths
    edges = bucket_edges(0, len(samples), most=MOST_LINE_POINTS)
    samples = samples[edges[1:] - 1]
    scale, low, high = (bucket_means(column, edges) for column in (scale, low, high))
    axes.fill_between(samples, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.plot(samples, scale, linewidth=1, label="noise scale" if labelled else None, **style)
    bound = np.where(np.isnan(scale), low, np.nan)
    axes.plot(samples, bound, linewidth=1, color=style["color"], linestyle=":")
    return True


def _draw(axes: Axes, record: RunRecord, column: str, style: dict[str, Any], *, over: str) -> None:
    samples, values = _numbers(record, over), _numbers(record, column)
    if len(values):
        edges = bucket_edges(0, len(values), most=MOST_LINE_POINTS)
        samples, values = samples[edges[1:] - 1], bucket_means(values, edges)
        axes.plot(samples, values, linewidth=1.2, **style)


def _numbers(record: RunRecord, column: str) -> NDArray[Any]:
    return np.asarray(record.metrics.get(column, np.zeros(0)), dtype=float)


def plain(text: str) -> str:
    """Returns a name as matplotlib draws it, without reading it as mathematics."""
    return text.replace("$", r"\$")


def number_axis(results: Sequence[SweepResult]) -> str | None:
    """Returns the setting with the most different numbers, or None if no setting has only numbers.

    The first of several with equally many is taken, if it has at least two.
    """
    found: dict[str, int] = {}
    for key in dict.fromkeys(key for one in results for key in one.values):
        with suppress(KeyError, ValueError):
            found[key] = len({float(one.values[key]) for one in results})
    return max(found, key=lambda key: found[key]) if max(found.values(), default=0) > 1 else None


def plot_sweep(results: Sequence[SweepResult], key: str, path: Path, *, title: str) -> None:
    """Draws the loss over a setting: a line for each combination of the other values.

    Args:
        results: complete runs with a loss.
        key: the setting, from `number_axis`.
        path: .svg or .png file to write or replace. The same results give the same bytes.
        title: line above the picture.
    """
    name, loss_of = judged_loss(results)
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in results:
        others = ", ".join(
            f"{other}={value}" for other, value in one.values.items() if other != key
        )
        loss = loss_of(one)
        if loss is not None:
            lines.setdefault(others, []).append((float(one.values[key]), loss))
    figure = new_figure()
    axes = figure.subplots()
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(
            *zip(*sorted(points), strict=True),
            marker="o",
            markersize=4,
            linewidth=1.2,
            color=str(0.6 * number / len(lines)),
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            label=plain(visible(label)),
        )
    values = [value for points in lines.values() for value, _ in points]
    if min(values) > 0 and (key.endswith("lr") or max(values) / min(values) >= LOG_AXIS_FACTOR):
        axes.set_xscale("log")
    axes.set_title(plain(visible(title)), fontsize=11, loc="left")
    axes.set_xlabel(plain(visible(key)))
    axes.set_ylabel(plain(visible(name)))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    save_figure(figure, path)
