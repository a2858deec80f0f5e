"""Harmful steps: losses and gradients that are not finite, or that stand out."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev

from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.errors import RampcliError
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.trainer import OnNonfinite
from rampcli.train.step import Limits, StepResult

WINDOW_STEPS = 128
"""Number of earlier steps with which a step is compared."""
MIN_STEPS = WINDOW_STEPS // 2
"""Earlier steps that a comparison needs. Fewer say too little about the spread."""


@dataclass(kw_only=True)
class StepGuard:
    """Says which steps are harmful, and ends the run at one if so chosen. Every rank has one.

    Attributes:
        on_nonfinite: what to do if the loss or the gradient norm is not finite.
        outliers: the last steps, with which each step is compared.
        checkpoints: where the run can resume if it ends.
        unit: what the run counts.
    """

    on_nonfinite: OnNonfinite
    outliers: "Outliers"
    checkpoints: Checkpoints
    unit: str

    @property
    def limits(self) -> Limits:
        """Limits of the next step."""
        return self.outliers.limits

    def judge(self, state: TrainingState, result: StepResult) -> str | None:
        """Returns why a step must be skipped, or None. Call it once for each step, in their order.

        A step that a device has judged by `limits` gets the same verdict.

        Args:
            state: the state before the step.

        Raises:
            RampcliError: the loss or the gradient norm is not finite, and the run ends at such
                steps.
        """
        reason = describe_nonfinite(result)
        if reason is None:
            return self.outliers.add(result)
        if self.on_nonfinite == "skip":
            return reason
        self.checkpoints.wait()
        saved = complete_checkpoints(self.checkpoints.run)
        start = f"step {saved[-1].step}" if saved else "step 0, as there is no checkpoint yet"
        raise RampcliError(
            f"step {state.step + 1}, after {state.consumed_samples:,} {self.unit}: {reason}",
            remedy="trainer.on_nonfinite=skip to skip such steps, or a smaller optim.lr;"
            f" the same command resumes from {start}",
        )


def describe_nonfinite(result: StepResult) -> str | None:
    """Returns which of loss and gradient norm is not finite, or None if both are finite."""
    named = {"loss": result.loss, "gradient norm": result.grad_norm}
    return next(
        (f"the {name} is {value}" for name, value in named.items() if not math.isfinite(value)),
        None,
    )


class Outliers:
    """Compares the loss and the gradient norm of each step with those of the last steps.

    Args:
        sigma: standard deviations above the mean beyond which a value is an outlier, or None for no
            limit.
        recent: loss and gradient norm of the last steps, from an earlier `recent`.

    Attributes:
        limits: values beyond which the next step is an outlier.
    """

    def __init__(self, *, sigma: float | None, recent: Iterable[tuple[float, float]] = ()) -> None:
        self.sigma = sigma
        self._recent = deque(recent, maxlen=WINDOW_STEPS)
        self.limits = self._limits()

    @property
    def recent(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of the last steps, oldest first."""
        return list(self._recent)

    def add(self, result: StepResult) -> str | None:
        """Adds a step to the last ones. Returns why it is an outlier, or None if it is not one."""
        if self.sigma is None:
            return None
        values = (result.loss, result.grad_norm)
        limits = (self.limits.loss, self.limits.grad_norm)
        reasons = []
        for number, name in enumerate(("loss", "gradient norm")):
            if values[number] > limits[number]:
                mean, deviation = self._spreads()[number]
                reasons.append(
                    f"the {name} is {values[number]:.4g}; over the last {len(self._recent)} steps"
                    f" its mean is {mean:.4g} and its standard deviation {deviation:.4g}"
                )
        self._recent.append(values)
        self.limits = self._limits()
        return "; ".join(reasons) or None

    def _limits(self) -> Limits:
        if self.sigma is None or len(self._recent) < MIN_STEPS:
            return Limits()
        return Limits(*(mean + self.sigma * deviation for mean, deviation in self._spreads()))

    def _spreads(self) -> list[tuple[float, float]]:
        """Returns mean and standard deviation of the last losses and gradient norms."""
        return [(fmean(values), pstdev(values)) for values in zip(*self._recent, strict=True)]
