"""Seesaw: a decaying learning rate as a staircase of growing batches (Meterez et al., arXiv 2510.14717).

Where a schedule would divide the learning rate by `a`, Seesaw divides it by `sqrt(a)` and multiplies the batch by `a`: the loss follows
the same path over the samples, in fewer optimiser steps. For a quarter cosine the steps saved come to 1 - 2/pi = 36.3% in the limit of
small `a`; staircases of factor 1.1, 1.5 and 2 save 33.8%, 27.1% and 22.0%.
"""

from collections.abc import Callable

from rampcli.batch.ramp import RampSchedule, Threshold

MOST_STAIRS = 1000


def staircase(
    relative_rate: Callable[[int], float],
    *,
    global_batch_size: int,
    unit: int,
    factor: float,
    first_sample: int,
    end_sample: int,
) -> RampSchedule:
    """The batch sizes that replace a decay.

    A size is the multiple of `unit` nearest to the exact product, and its stair begins where the rate has fallen by exactly its share, so
    that rounding a size never bends the schedule.

    Args:
        relative_rate: the learning rate after so many samples, as a share of its peak; it falls from `first_sample` on.
        global_batch_size: the first batch, in samples.
        unit: samples that every batch must be a multiple of.
        factor: by which a stair grows; above 1.
        first_sample, end_sample: where the decay begins, and where the run ends.
    """
    stairs = [Threshold(0, global_batch_size)]
    exact = float(global_batch_size)
    while len(stairs) < MOST_STAIRS:
        exact *= factor
        size = max(unit * round(exact / unit), stairs[-1].global_batch_size + unit)
        begin = _first_sample_at(relative_rate, global_batch_size / size, first_sample, end_sample)
        if end_sample - begin < size:  # no whole step would be left for it
            break
        if (
            begin == stairs[-1].first_sample and len(stairs) > 1
        ):  # a cliff in the schedule: two stairs at once
            stairs.pop()
        stairs.append(Threshold(begin, size))
    return RampSchedule(thresholds=tuple(stairs))


def _first_sample_at(
    relative_rate: Callable[[int], float], share: float, low: int, high: int
) -> int:
    """The first sample from `low` on at which the rate is down to `share` of its peak; `high` if it never is."""
    while low < high:
        middle = (low + high) // 2
        if relative_rate(middle) <= share:
            high = middle
        else:
            low = middle + 1
    return low


def steps_in_the_limit(
    relative_rate: Callable[[int], float],
    *,
    global_batch_size: int,
    end_sample: int,
    points: int = 10_000,
) -> float:
    """Optimiser steps of a staircase with infinitely small stairs: the mean of the relative rate, times the steps without one."""
    mean = (
        sum(relative_rate(round((index + 0.5) * end_sample / points)) for index in range(points))
        / points
    )
    return mean * end_sample / global_batch_size
