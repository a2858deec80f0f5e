"""Draws what a search has found: throughput and time per step over the micro batch size."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from rampcli.report.plots import new_figure, save_figure
from rampcli.tune.search import SATURATED, Verdict
from rampcli.tune.trial import Trial


def plot_search(trials: Sequence[Trial], verdict: Verdict, path: Path, *, title: str) -> None:
    """Draws throughput and time per step, in greyscale for printing.

    A vertical line marks the recommended size, a horizontal one the throughput that it has to
    reach, and a grey area the sizes that do not fit.

    Args:
        trials: outcomes in ascending order of size.
        path: .svg or .png file to write or replace. The same outcomes give the same bytes.
    """
    figure = new_figure()
    rates, times = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    fitting = [trial for trial in trials if trial.fits]
    sizes = [trial.micro_batch_size for trial in fitting]
    for axes, values, label in (
        (rates, [trial.samples_per_s for trial in fitting], "samples/s"),
        (times, [trial.step_s for trial in fitting], "s/step"),
    ):
        errors = [
            (trial.spread or 0.0) * value for trial, value in zip(fitting, values, strict=True)
        ]
        axes.errorbar(sizes, values, yerr=errors, color="black", marker="o", capsize=3)
        axes.set_ylim(0, 1.15 * max(values))
        axes.set_ylabel(label)
        axes.axvline(verdict.recommended.micro_batch_size, color="0.4", linestyle="--")
        _shade_what_does_not_fit(axes, trials)
    enough = SATURATED * verdict.fastest.samples_per_s
    rates.axhline(enough, color="0.4", linestyle=":")
    rates.annotate(
        f"{SATURATED:.0%} of the best",
        (sizes[0], enough),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=9,
    )
    rates.set_title(title, fontsize=11, loc="left", parse_math=False)
    times.set_xscale("log", base=2)
    shown = [trial.micro_batch_size for trial in trials]
    times.set_xticks(shown, list(map(str, shown)))
    times.minorticks_off()
    times.set_xlabel("micro batch size (samples); dashed: recommended; grey: does not fit")
    save_figure(figure, path)


def _shade_what_does_not_fit(axes: Axes, trials: Sequence[Trial]) -> None:
    unfit = [trial.micro_batch_size for trial in trials if not trial.fits]
    if unfit:
        axes.axvspan(min(unfit) / 2**0.2, max(unfit) * 2**0.2, color="0.9")
