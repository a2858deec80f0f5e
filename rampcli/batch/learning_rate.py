"""The learning rate as a function of consumed samples: a small batch does not stretch it."""

import math
from dataclasses import dataclass

from rampcli.batch.training_plan import TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class CosineSchedule:
    """Linear warm-up to `peak`, then a cosine (arXiv 1608.03983) down to `floor` at `end_sample`; without an end it stays at `peak`."""

    peak: float
    floor: float
    warmup_samples: int
    end_sample: int | None

    @classmethod
    def over(
        cls, plan: TrainingPlan, *, peak: float, floor: float, warmup_samples: int | None, warmup_steps: int | None
    ) -> "CosineSchedule":
        """Over a whole run; a warm-up in optimiser steps is converted to the samples that the ramp consumes in them."""
        if warmup_steps is not None:
            warmup_samples = plan.ramp.samples_after(warmup_steps)
        return cls(peak=peak, floor=floor, warmup_samples=warmup_samples or 0, end_sample=plan.end_sample)

    def at(self, consumed_samples: int) -> float:
        """The learning rate of the step after which `consumed_samples` are consumed."""
        if consumed_samples < self.warmup_samples:
            return self.peak * consumed_samples / self.warmup_samples
        if self.end_sample is None or self.end_sample <= self.warmup_samples:
            return self.peak
        share = min(1.0, (consumed_samples - self.warmup_samples) / (self.end_sample - self.warmup_samples))
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * share)) / 2
