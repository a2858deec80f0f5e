"""Harmful steps: losses and gradients that are not finite, or that stand out."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev

from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.config.schema.trainer import OnNonfinite
from rampcli.errors import RampcliError
from rampcli.runs.manifest import complete_checkpoints
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import StepResult, TakenStep

WINDOW_STEPS = 128
"""Number of earlier steps with which a step is compared."""
MIN_STEPS = WINDOW_STEPS // 2
"""Earlier steps that a comparison needs. Fewer say too little about the spread."""


@dataclass(kw_only=True)
class StepGuard(LoopObserver):
    """Skips harmful steps, or ends the run at one. Every rank has one.

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

    def before_update(self, state: TrainingState, result: StepResult) -> str | None:
        """Returns why the step must be skipped, or None.

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

    def after_step(self, state: TrainingState, _step: TakenStep) -> None:
        """Notes the recent steps in the state, so that checkpoints hold them."""
        state.recent = self.outliers.recent


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
    """

    def __init__(self, *, sigma: float | None, recent: Iterable[tuple[float, float]] = ()) -> None:
        self.sigma = sigma
        self._recent = deque(recent, maxlen=WINDOW_STEPS)

    @property
    def recent(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of the last steps, oldest first."""
        return list(self._recent)

    def add(self, result: StepResult) -> str | None:
        """Adds a step to the last ones. Returns why it is an outlier, or None if it is not one."""
        if self.sigma is None:
            return None
        values = (result.loss, result.grad_norm)
        reasons = []
        if len(self._recent) >= MIN_STEPS:
            names, last = ("loss", "gradient norm"), zip(*self._recent, strict=True)
            for name, value, before in zip(names, values, last, strict=True):
                mean, deviation = fmean(before), pstdev(before)
                if value > mean + self.sigma * deviation:
                    reasons.append(
                        f"the {name} is {value:.4g}; over the last {len(before)} steps its mean is"
                        f" {mean:.4g} and its standard deviation {deviation:.4g}"
                    )
        self._recent.append(values)
        return "; ".join(reasons) or None
