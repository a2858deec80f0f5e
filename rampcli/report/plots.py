"""Draws a plan: batch size and nodes over consumed samples."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rampcli.batch.quantities import scale, shorten
from rampcli.batch.training_plan import TrainingPlan
from rampcli.files.guarded_folder import replace_file

MOST_LABELLED = 12
"""With more stages than this, their batch sizes are not written into the picture."""
OPEN_SHARE = 0.25
"""Length at which a long or open last stage is cut, as a share of the other stages together."""
CHARACTER_SHARE = 0.013
"""Width of a digit, as a share of the width of the axes."""


def plot_plan(plan: TrainingPlan, path: Path, *, title: str, unit: str = "samples") -> None:
    """Draws batch size over consumed samples, with the nodes below, in greyscale for printing.

    Both count tokens if the samples of the phases of a run differ in length.

    Args:
        path: .svg or .png file to write or replace. The same plan gives the same bytes.
        title: line above the picture.
        unit: what the samples are.
    """
    figure = new_figure()
    batch, nodes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    stages, end, first = plan.stages, _last_sample(plan), plan.stages[0].first_sample
    edges = [*(stage.first_sample for stage in stages), end]
    sizes = [stage.global_batch_size for stage in stages]
    if not plan.has_one_length:
        unit, first, edges = "tokens", plan.tokens_at(first), [*map(plan.tokens_at, edges)]
        lengths = [plan.of(stage).sequence_length for stage in stages]
        sizes = [size * length for size, length in zip(sizes, lengths, strict=True)]
    _draw_batches(batch, sizes, edges, unit)
    batch.set_title(title, fontsize=11, loc="left", parse_math=False)
    counts = [stage.num_nodes for stage in stages]
    nodes.stairs(counts, edges, baseline=0, fill=True, color="0.6")
    nodes.stairs(counts, edges, baseline=None, color="black", linewidth=1.2)
    nodes.set_ylim(0, max(counts) * 1.25)
    nodes.set_ylabel("nodes")
    nodes.locator_params(axis="y", integer=True, nbins=4)
    if len(plan.phases) > 1:
        names = [str(plan.of(stage).name) for stage in stages]
        _draw_phases(batch, names, edges)
    open_end = "" if plan.end_sample == end else "; the last stage continues"
    nodes.set_xlabel(f"consumed {unit}{open_end}")
    nodes.set_xlim(first if plan.passed else 0, edges[-1])
    sample_ticks(nodes)
    save_figure(figure, path)


def plot_tokens(starts: Sequence[int], batches: Sequence[int], path: Path, *, title: str) -> None:
    """Draws the tokens of a batch over trained tokens, in greyscale for printing.

    Args:
        starts: trained tokens from which each batch applies, the first 0.
        batches: tokens of each batch.
        path: .svg or .png file to write or replace.
    """
    figure = new_figure()
    axes = figure.subplots()
    edges = [*starts, int(starts[-1] * (1 + OPEN_SHARE)) or 1]
    axes.stairs(batches, edges, baseline=0, fill=True, color="0.88")
    axes.stairs(batches, edges, baseline=None, color="black", linewidth=1.8)
    axes.set_xlim(0, edges[-1])
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.set_xlabel("trained tokens; the last batch stays")
    axes.set_ylabel("tokens per batch")
    sample_ticks(axes)
    axes.yaxis.set_major_formatter(axes.xaxis.get_major_formatter())
    save_figure(figure, path)


def new_figure() -> Figure:
    """Returns an empty figure in the style of all pictures."""
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "rampcli",
            "font.size": 10,
            "font.family": "sans-serif",
        }
    )
    return Figure(figsize=(8, 4.5), layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Writes or replaces an .svg or .png file. The same figure gives the same bytes."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:], dpi=200, metadata=metadata)
    replace_file(path, picture.getvalue())


def sample_ticks(axes: Axes) -> None:
    """Labels the horizontal axis with counts of samples: `2.5M`."""
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda samples, _: _label(samples)))


def _last_sample(plan: TrainingPlan) -> int:
    """Returns the sample at which the picture ends; a long or open last stage is cut.

    The last stage of a run in phases is its last phase, or ends it, and is only cut if it is open.
    """
    last = plan.stages[-1]
    if plan.end_sample is not None and (len(plan.stages) == 1 or len(plan.phases) > 1):
        return plan.end_sample
    drawn = max(last.first_sample, last.global_batch_size)
    cut = last.first_sample + int(OPEN_SHARE * drawn) + last.global_batch_size
    return cut if plan.end_sample is None else min(plan.end_sample, cut)


def _draw_batches(axes: Axes, sizes: Sequence[int], edges: Sequence[int], unit: str) -> None:
    """Draws the batch size of each stage, with its number if there is room."""
    axes.stairs(sizes, edges, baseline=None, color="black", linewidth=1.8)
    axes.fill_between(edges, [*sizes, sizes[-1]], step="post", color="0.88")
    for left, right, size in zip(edges, edges[1:], sizes, strict=False):
        label = shorten(size) if unit == "tokens" else str(size)
        fits = (right - left) / (edges[-1] - edges[0]) >= len(label) * CHARACTER_SHARE
        if fits and len(sizes) <= MOST_LABELLED:
            axes.annotate(
                label,
                ((left + right) / 2, size),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    axes.set_ylim(0, max(sizes) * 1.15)
    axes.set_ylabel(f"global batch size\n({unit})")


def _draw_phases(axes: Axes, names: Sequence[str], edges: Sequence[int]) -> None:
    """Writes the name of each phase at its first stage, above the batches."""
    for before, name, edge in zip([None, *names], names, edges, strict=False):
        if name != before:
            axes.axvline(edge, color="0.6", linewidth=0.8, linestyle=":")
            axes.annotate(
                name,
                (edge, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=9,
                color="0.3",
                parse_math=False,
            )


def _label(samples: float) -> str:
    """Returns a count of samples for the axis: `2.5M`."""
    scaled, unit = scale(samples)
    return f"{scaled:g}{unit}"
