"""Pictures of a plan."""

from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from rampcli.batch.quantities import scale
from rampcli.batch.training_plan import TrainingPlan
from rampcli.own_folder import replace_file

OPEN_SHARE = 0.25
"""An open last stage is drawn this much of the others' length."""
CHARACTER_SHARE = 0.013
"""Of the width of the axes, that a digit takes."""


def plot_plan(plan: TrainingPlan, path: Path, *, title: str) -> None:
    """Draw batch size against consumed samples, with the nodes beneath, in black and grey so that it prints.

    Args:
        plan: what to draw.
        path: an .svg or a .png file, which is replaced; the same plan gives the same bytes.
        title: stands above.
    """
    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "rampcli",
            "font.size": 10,
            "font.family": "sans-serif",
        }
    )
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    batch, nodes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    first = [stage.first_sample for stage in plan.stages]
    drawn = max(first[-1], plan.stages[-1].global_batch_size)
    last = first[-1] + int(OPEN_SHARE * drawn) + plan.stages[-1].global_batch_size
    if plan.end_sample is not None:
        last = plan.end_sample if len(first) == 1 else min(plan.end_sample, last)
    edges = [*first, last]
    sizes = [stage.global_batch_size for stage in plan.stages]
    batch.stairs(sizes, edges, baseline=None, color="black", linewidth=1.8)
    batch.fill_between(edges, [*sizes, sizes[-1]], step="post", color="0.88")
    for left, right, size in zip(edges, edges[1:], sizes, strict=False):
        wide_enough = (right - left) / (last - first[0]) >= len(str(size)) * CHARACTER_SHARE
        if wide_enough and len(sizes) <= 12:  # else it would lie over its neighbour's
            batch.annotate(
                str(size),
                ((left + right) / 2, size),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    batch.set_ylim(0, max(sizes) * 1.15)
    batch.set_ylabel("global batch size\n(samples)")
    batch.set_title(title, fontsize=11, loc="left", parse_math=False)
    counts = [stage.num_nodes for stage in plan.stages]
    nodes.stairs(counts, edges, baseline=0, fill=True, color="0.6")
    nodes.stairs(counts, edges, baseline=None, color="black", linewidth=1.2)
    nodes.set_ylim(0, max(counts) * 1.25)
    nodes.set_ylabel("nodes")
    nodes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    going_on = "" if plan.end_sample == last else "; the last stage goes on"
    nodes.set_xlabel(f"consumed samples{going_on}")
    nodes.set_xlim(0 if not plan.passed else first[0], last)
    nodes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda samples, _: _short(samples)))
    for axes in (batch, nodes):
        axes.spines[["top", "right"]].set_visible(False)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix[1:], dpi=200, metadata=metadata)
    replace_file(path, picture.getvalue())


def _short(samples: float) -> str:
    scaled, unit = scale(samples)
    return f"{scaled:g}{unit}"
