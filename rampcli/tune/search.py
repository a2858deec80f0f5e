"""Which micro batch size to try next."""

from collections.abc import Mapping, Sequence

SATURATED = 0.97
"""Share of the best throughput from which on a micro batch is large enough."""


def next_size(
    sizes: Sequence[int], fits: Mapping[int, bool], *, predicted: int, exhaustive: bool = False
) -> int | None:
    """Returns the size to try next to find the largest that fits, or None once it is known.

    Starts at the prediction and moves away from it, one size first, then two, four and so on, until
    a size that fits and one that does not enclose the limit. Then it halves what lies between.

    Args:
        sizes: sizes that may be tried, in ascending order.
        fits: sizes that were tried, and whether they fit.
        predicted: size to start with.
        exhaustive: try all sizes, from the smallest to the first that does not fit.
    """
    if exhaustive:
        return (
            next((size for size in sizes if size not in fits), None) if all(fits.values()) else None
        )
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


def next_smaller(sizes: Sequence[int], samples_per_s: Mapping[int, float]) -> int | None:
    """Returns the next smaller size to time, or None once the smallest saturated one is known.

    Halves the smallest timed size, as far as the sizes allow, as long as its throughput is
    `SATURATED`.

    Args:
        sizes: sizes that may be tried, in ascending order.
        samples_per_s: throughput of the sizes that fit.
    """
    if not samples_per_s:
        return None
    smallest = min(samples_per_s)
    if samples_per_s[smallest] < SATURATED * max(samples_per_s.values()):
        return None
    smaller = [size for size in sizes if size < smallest]
    halves = [size for size in smaller if size >= smallest / 2]
    return next(iter(halves or reversed(smaller)), None)
