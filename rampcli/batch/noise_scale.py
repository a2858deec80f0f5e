"""The gradient noise scale (arXiv 1812.06162): its estimate, and an interval for it.

The gradient g of a step is the sum of the gradients g_j of groups of its samples. Each g_j has the
mean w_j G, where w_j is the group's share of the valid tokens. With W = sum of w_j^2 and v the
variance of g, summed over its coordinates:

    E |g|^2 = |G|^2 + v        E sum |g_j|^2 = W |G|^2 + v

So two sums of squares give |G|^2 and v without bias, however tokens are spread over groups.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist, fmean

from rampcli.batch.quantities import shorten

NOISE_KEY = "noise_scale.every_steps"
KEPT_MEASUREMENTS = 128
"""Last measured steps whose later half is averaged: the first steps of a run differ from others."""
MIN_MEASUREMENTS = 8
"""Measured steps before a noise scale is given. Fewer say too little about their spread."""
CONFIDENCE = 0.95
"""Probability with which intervals hold the true value."""
NOISE_COLUMNS = ("grad_sq", "grad_var")
SCALE_COLUMNS = ("noise_scale", "noise_scale_low", "noise_scale_high")
"""Columns of metrics.jsonl: what a step measures, and the averages after it."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What one step says about the noise of gradients. Neither number is biased.

    Attributes:
        grad_sq: squared norm of the true gradient. A single estimate may be negative.
        grad_var: variance of the gradient of one sequence, summed over its coordinates.
    """

    grad_sq: float
    grad_var: float


def noise_of(
    *, whole_sq: float, groups_sq: float, shares_sq: float, sequences: int
) -> Noise | None:
    """Returns the estimates of a step, or None if its groups do not tell them.

    Args:
        whole_sq: squared norm of the step's gradient, before clipping.
        groups_sq: sum of the squared norms of what each group adds to this gradient.
        shares_sq: sum of the squared shares of the groups in the valid tokens.
        sequences: sequences of the step.
    """
    if not 0 < shares_sq < 1:  # without valid tokens, or with one group
        return None
    grad_sq = (whole_sq - groups_sq) / (1 - shares_sq)
    variance = (groups_sq - shares_sq * whole_sq) / (1 - shares_sq)
    return Noise(grad_sq, variance * sequences)


def groups_per_step(
    *,
    data_parallel_size: int,
    accumulate_grad_batches: int,
    micro_batch_size: int,
    pieces: int | None,
) -> int:
    """Returns the groups that a step is measured with. It takes two to measure noise.

    A group is a micro batch. If a step has a single one, it is computed in two halves. A pipeline
    splits micro batches into pieces, which are the groups then.

    Args:
        pieces: parts of a micro batch that pass through a pipeline, or None without a pipeline.
    """
    groups = data_parallel_size * accumulate_grad_batches * (pieces or 1)
    return min(2, micro_batch_size) if groups == 1 and pieces is None else groups


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A noise scale in sequences, with the interval that holds it with `CONFIDENCE`.

    Attributes:
        value: the noise scale. None if the squared norm of the gradient may be 0, or if there are
            too few measurements.
        low: lower end of the interval, which may be known without the others.
        high: upper end.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def columns(self) -> dict[str, float | None]:
        """Returns the columns of metrics.jsonl."""
        return dict(zip(SCALE_COLUMNS, (self.value, self.low, self.high), strict=True))

    def text(self, *, sequence_length: int) -> str:
        """Returns the noise scale in sequences and tokens, for people."""

        def both(sequences: float) -> str:
            return f"{shorten(sequences)} sequences, {shorten(sequences * sequence_length)} tokens"

        if self.value is not None and self.low is not None and self.high is not None:
            return f"{both(self.value)} (between {both(self.low)} and {both(self.high)})"
        if self.low is not None:
            return f">= {both(self.low)}"
        return f"unknown yet (it takes {MIN_MEASUREMENTS} measured steps)"

    def short_text(self) -> str:
        """Returns the noise scale in sequences, for a cell of a table."""
        if self.value is not None:
            return shorten(self.value)
        return "-" if self.low is None else f">= {shorten(self.low)}"


class NoiseAverage:
    """Averages the estimates of the last measured steps.

    They are the later half of all, at most of `KEPT_MEASUREMENTS`. Numerator and denominator are
    averaged separately, and divided last: a mean of quotients would be biased.
    """

    def __init__(self, measured: Iterable[Noise] = ()) -> None:
        self._measured = deque(measured, maxlen=KEPT_MEASUREMENTS)

    def add(self, noise: Noise) -> None:
        """Adds the estimates of a step."""
        self._measured.append(noise)

    def scale(self) -> NoiseScale:
        """Returns the noise scale with its interval.

        The interval is Fieller's for the quotient of two means. It takes the measured steps as
        independent, and their means as normally distributed.
        """
        count = max(MIN_MEASUREMENTS, len(self._measured) // 2)
        if len(self._measured) < count:
            return NoiseScale()
        recent = list(self._measured)[-count:]
        squares = [noise.grad_sq for noise in recent]
        variances = [noise.grad_var for noise in recent]
        square, variance = fmean(squares), fmean(variances)
        spread = student_quantile(count - 1) ** 2 / (count * (count - 1))

        def margin(some: list[float], mean: float, others: list[float], other_mean: float) -> float:
            pairs = zip(some, others, strict=True)
            return spread * math.fsum((one - mean) * (other - other_mean) for one, other in pairs)

        # The quotients r for which the mean of variances - r squares may be 0 are those with
        # a r^2 - 2 b r + c <= 0.
        a = square**2 - margin(squares, square, squares, square)
        b = square * variance - margin(squares, square, variances, variance)
        c = variance**2 - margin(variances, variance, variances, variance)
        root = math.sqrt(max(0.0, b**2 - a * c))
        if a > 0 and square > 0 and variance > 0:
            return NoiseScale(variance / square, max(0.0, (b - root) / a), (b + root) / a)
        # The interval of the squared norm holds 0: r is beyond the positive root.
        return NoiseScale(low=(b - root) / a) if a < 0 < c and variance > 0 else NoiseScale()


def student_quantile(freedom: int) -> float:
    """Returns the two-sided quantile of Student's distribution at `CONFIDENCE`.

    It is an expansion in the degrees of freedom (Abramowitz and Stegun, 26.7.5). From 7 degrees on,
    its error is below 0.001.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))
