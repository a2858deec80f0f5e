"""The median of measured times, and the interval that it lies in with 95% confidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma, log
from statistics import median

from rampcli.batch.noise_scale import CONFIDENCE

FEWEST = 6
"""Fewest times for an interval: all lie on one side of the median in 3% of the cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Median:
    """A median of times, in seconds.

    Attributes:
        low_s, high_s: interval of the true median, with a confidence of `CONFIDENCE`.
    """

    s: float
    low_s: float
    high_s: float
    steps: int

    @property
    def spread(self) -> float:
        """Half the width of the interval, as a share of the median."""
        return (self.high_s - self.low_s) / 2 / self.s


def median_of(times: Sequence[float]) -> Median:
    """Returns the median of times with its interval, which assumes no distribution.

    The interval ends at two of the sorted times, equally far from both ends: the number of times
    below the true median is binomial with probability one half. Fewer than `FEWEST` times give the
    interval from the shortest to the longest, whose confidence is lower.
    """
    ordered, count = sorted(times), len(times)
    outside, below = 0, 0.0  # times left out at either end, and probability of the median there
    while 2 * (below := below + _probability(outside, count)) <= 1 - CONFIDENCE:
        outside += 1
    first = max(0, outside - 1)
    return Median(
        s=median(ordered), low_s=ordered[first], high_s=ordered[count - 1 - first], steps=count
    )


def _probability(below: int, count: int) -> float:
    """Binomial probability that exactly `below` of `count` times are below the true median."""
    ways = lgamma(count + 1) - lgamma(below + 1) - lgamma(count - below + 1)
    return exp(ways - count * log(2))
