"""Steps that would do harm: losses and gradients that are not finite, or stand out."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean, pstdev

from rampcli.train.step import StepResult

WINDOW = 128
"""Steps that a step is compared with."""
LEAST = WINDOW // 2
"""Fewer tell nothing yet."""


def not_finite(result: StepResult) -> str | None:
    """What of a step is not finite; None where all is."""
    named = {"loss": result.loss, "norm of the gradient": result.grad_norm}
    return next(
        (f"the {name} is {value}" for name, value in named.items() if not math.isfinite(value)),
        None,
    )


class Outliers:
    """Compares the loss and the gradient norm of each step with those of the last steps.

    Args:
        sigma: how many standard deviations above their mean is too much; None: nothing is.
        recent: losses and norms of the last steps, as `recent` gave them.
    """

    def __init__(self, *, sigma: float | None, recent: Iterable[tuple[float, float]] = ()) -> None:
        self.sigma = sigma
        self._recent = deque(recent, maxlen=WINDOW)

    @property
    def recent(self) -> list[tuple[float, float]]:
        """Losses and norms of the last steps, oldest first."""
        return list(self._recent)

    def stands_out(self, result: StepResult) -> str | None:
        """What of a step stands out; None where nothing does. From now on, later steps are compared with this one too."""
        if self.sigma is None:
            return None
        values = (result.loss, result.grad_norm)
        reasons = []
        if len(self._recent) >= LEAST:
            for name, value, before in zip(
                ("loss", "norm of the gradient"),
                values,
                zip(*self._recent, strict=True),
                strict=True,
            ):
                mean, deviation = fmean(before), pstdev(before)
                if value > mean + self.sigma * deviation:
                    usual = f"{mean:.4g} with a standard deviation of {deviation:.4g} over the last {len(before)} steps"
                    reasons.append(f"the {name} is {value:.4g}, after {usual}")
        self._recent.append(values)
        return "; ".join(reasons) or None
