"""Harmful steps: losses and gradients that are not finite, or that stand out."""

from collections import deque
from collections.abc import Iterable, Mapping
from math import isfinite
from statistics import fmean, pstdev

from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.errors import RampcliError
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.trainer import OnNonfinite
from rampcli.train.step import Limits, StepResult

COMPARED_STEPS = 128
"""Number of earlier steps with which a step is compared."""
MIN_STEPS = COMPARED_STEPS // 2
"""Earlier steps that a comparison needs. Fewer say too little about the spread."""


class StepGuard:
    """Says which steps are harmful, and ends the run at one if so chosen. Every rank has one.

    Compares the loss and the gradient norm of each step with those of the last steps.

    Args:
        on_nonfinite: what to do if the loss or the gradient norm is not finite.
        sigma: standard deviations above the mean beyond which a value is an outlier, or None for no
            limit.
        recent: loss and gradient norm of the last steps, from an earlier `recent`.
        checkpoints: where the run can resume if it ends.
        unit: what the run counts.

    Attributes:
        limits: values beyond which the next step is an outlier.
    """

    def __init__(
        self,
        *,
        on_nonfinite: OnNonfinite,
        sigma: float | None,
        recent: Iterable[tuple[float, float]] = (),
        checkpoints: Checkpoints,
        unit: str,
    ) -> None:
        self.on_nonfinite = on_nonfinite
        self.sigma = sigma
        self.checkpoints = checkpoints
        self.unit = unit
        self._recent = deque(recent, maxlen=COMPARED_STEPS)
        self._set_limits()

    @property
    def recent(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of the last steps, oldest first."""
        return list(self._recent)

    def judge(self, state: TrainingState, result: StepResult) -> str | None:
        """Returns why a step must be skipped, or None. Call it once for each step, in their order.

        A step that a device has judged by `limits` gets the same verdict.

        Args:
            state: the state before the step.

        Raises:
            RampcliError: the loss or the gradient norm is not finite, and the run ends at such
                steps.
        """
        named = {"loss": result.loss, "gradient norm": result.grad_norm}
        wrong = [f"the {name} is {value}" for name, value in named.items() if not isfinite(value)]
        if not wrong:
            return self._add(named)
        if self.on_nonfinite == "skip":
            return wrong[0]
        self.checkpoints.wait()
        saved = complete_checkpoints(self.checkpoints.run)
        start = f"step {saved[-1].step}" if saved else "step 0, as there is no checkpoint yet"
        raise RampcliError(
            f"step {state.step + 1}, after {state.consumed_samples:,} {self.unit}: {wrong[0]}",
            remedy="trainer.on_nonfinite=skip to skip such steps, or a smaller optim.lr;"
            f" the same command resumes from {start}",
        )

    def _add(self, named: Mapping[str, float]) -> str | None:
        """Adds a step to the last ones. Returns why it is an outlier, or None if it is not one."""
        if self.sigma is None:
            return None
        spreads = zip(named.items(), self.limits, self._spreads, strict=False)  # none at first
        reasons = [
            f"the {name} is {value:.4g}; over the last {len(self._recent)} steps its mean is"
            f" {mean:.4g} and its standard deviation {deviation:.4g}"
            for (name, value), limit, (mean, deviation) in spreads
            if value > limit
        ]
        self._recent.append((named["loss"], named["gradient norm"]))
        self._set_limits()
        return "; ".join(reasons) or None

    def _set_limits(self) -> None:
        """Sets the limits from mean and standard deviation of the last losses and norms."""
        self._spreads = [(fmean(each), pstdev(each)) for each in zip(*self._recent, strict=True)]
        self.limits = Limits()
        if self.sigma is not None and len(self._recent) >= MIN_STEPS:
            self.limits = Limits(*(mean + self.sigma * each for mean, each in self._spreads))
