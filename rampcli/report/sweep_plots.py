"""Draws the results of a sweep: the loss of each run over a value that varies."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rampcli.errors import visible
from rampcli.report.plots import new_figure, save_figure
from rampcli.report.run_plots import STYLES, plain
from rampcli.report.sweep_results import SweepResult, judged_loss

WIDE = 10
"""Values that span this factor or more get a logarithmic axis. Learning rates always do."""


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
            linestyle=STYLES[number % len(STYLES)],
            label=plain(visible(label)),
        )
    values = [value for points in lines.values() for value, _ in points]
    if min(values) > 0 and (key.endswith("lr") or max(values) / min(values) >= WIDE):
        axes.set_xscale("log")
    axes.set_title(plain(visible(title)), fontsize=11, loc="left")
    axes.set_xlabel(plain(visible(key)))
    axes.set_ylabel(plain(visible(name)))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    save_figure(figure, path)
