"""Which micro batch size to try next, and which to use.

After "Determining the feasible batch sizes and estimating training throughput" in Google's Deep
Learning Tuning Playbook.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rampcli.tune.trial import Trial

SATURATED = 0.97
"""A micro batch with this share of the best throughput is large enough."""


def next_size(
    sizes: Sequence[int], fits: Mapping[int, bool], *, predicted: int, exhaustive: bool = False
) -> int | None:
    """Returns the size to try next to find the largest that fits, or None once it is known.

    Starts at the prediction and moves away from it, one size first, then two, four and so on, until
    the limit lies between a size that fits and one that does not. Then bisects.

    Args:
        sizes: sizes that may be tried, in ascending order.
        fits: sizes that were tried, and whether they fit.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
    """
    if exhaustive:
        limit = min((size for size, fit in fits.items() if not fit), default=inf)
        return next((size for size in sizes if size < limit and size not in fits), None)
    if not fits:
        return predicted
    fit = max((place for place, size in enumerate(sizes) if fits.get(size)), default=-1)
    unfit = min(
        (place for place, size in enumerate(sizes) if fits.get(size) is False), default=len(sizes)
    )
    if unfit - fit <= 1:
        return None
    if unfit == len(sizes):
        return sizes[min(fit + _stride(fits), len(sizes) - 1)]
    if fit == -1:
        return sizes[max(unfit - _stride(fits), 0)]
    return sizes[(fit + unfit) // 2]


def _stride(fits: Mapping[int, bool]) -> int:
    """Returns how many sizes to move on: twice as many after each trial."""
    return int(2 ** (len(fits) - 1))


def next_smaller(sizes: Sequence[int], tried: Mapping[int, float | None]) -> int | None:
    """Returns the next smaller size to time, or None once the smallest saturated one is known.

    Halves the smallest size with `SATURATED` of the best throughput, as far as the sizes allow,
    until one is slower or does not fit. Then bisects between the two.

    Args:
        sizes: sizes that may be tried, in ascending order.
        tried: throughput of the sizes that were tried, in samples/s; None if one does not fit.
    """
    rates = {size: rate for size, rate in tried.items() if rate is not None}
    if not rates:
        return None
    enough = SATURATED * max(rates.values())
    saturated = min(size for size, rate in rates.items() if rate >= enough)
    below = max((size for size in tried if size < saturated), default=None)
    if below is not None:
        between = [size for size in sizes if below < size < saturated]
        return between[len(between) // 2] if between else None
    smaller = [size for size in sizes if size < saturated]
    halves = [size for size in smaller if size >= saturated / 2]
    return next(iter(halves or reversed(smaller)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of a search.

    Attributes:
        largest: the largest micro batch that fits.
        fastest: the micro batch with the best throughput.
        recommended: the smallest micro batch with at least `SATURATED` of the best throughput.
        others: further sizes that may be the one to recommend, by their intervals.
        slower: sizes that are certainly slower than half their size.
    """

    largest: Trial
    fastest: Trial
    recommended: Trial
    others: Sequence[int]
    slower: Sequence[int]

    @property
    def share(self) -> float:
        """Throughput of the recommended size, as a share of the best."""
        return self.recommended.samples_per_s / self.fastest.samples_per_s


def verdict_of(trials: Sequence[Trial]) -> Verdict | None:
    """Returns the verdict of trials, or None if no size fits."""
    fitting = sorted(
        (trial for trial in trials if trial.fits), key=lambda trial: trial.micro_batch_size
    )
    if not fitting:
        return None
    fastest = max(fitting, key=lambda trial: trial.samples_per_s)
    enough = SATURATED * fastest.samples_per_s
    recommended = next(trial for trial in fitting if trial.samples_per_s >= enough)
    intervals = {trial.micro_batch_size: trial.rates() for trial in fitting}
    possible = _possible(intervals)
    return Verdict(
        largest=fitting[-1],
        fastest=fastest,
        recommended=recommended,
        others=[size for size in possible if size != recommended.micro_batch_size],
        slower=[
            size
            for size, (_, high) in intervals.items()
            if size % 2 == 0 and size // 2 in intervals and high < intervals[size // 2][0]
        ],
    )


def _possible(intervals: Mapping[int, tuple[float, float]]) -> list[int]:
    """Returns the sizes that may be the smallest with `SATURATED` of the best throughput.

    Args:
        intervals: interval of the throughput of each size, in ascending order of size.
    """
    best_is_at_least = max(low for low, _ in intervals.values())
    found = []
    for size, (low, high) in intervals.items():
        if high < SATURATED * best_is_at_least:
            continue
        found.append(size)
        others = [other for name, (_, other) in intervals.items() if name != size]
        if low >= SATURATED * max(others, default=0.0):
            break  # it is certainly fast enough, so no larger size is the smallest
    return found
