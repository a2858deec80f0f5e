"""The learning rate as a function of consumed samples: a small batch does not stretch it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rampcli.batch.training_plan import TrainingPlan

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,  # noqa: ARG005
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (
        (1 + math.cos(math.pi * share)) / 2
    ),  # arXiv 1608.03983, without restarts
    "quarter_cosine": lambda share: math.cos(math.pi / 2 * share),  # arXiv 2510.14717
}
"""How much of the way from `floor` up to `peak` is left after a share of the decay, 0 to 1."""
BATCH_COUPLINGS: dict[str, Callable[[float], float]] = {
    "none": lambda share: 1.0,  # noqa: ARG005
    "sqrt": math.sqrt,
    "linear": lambda share: share,
}
"""What a batch of a share of the target multiplies the learning rate by: sqrt as arXiv 2205.10287, linear as arXiv 1706.02677 has it."""
WSD_SHARE = 0.1
"""The last tenth of a run decays, unless it is said otherwise (arXiv 2404.06395, section 4)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """Linear warm-up to `peak`, then a decay to `floor` at `end_sample`; without an end it stays at `peak`.

    Attributes:
        decay_style: a name in `DECAYS`; or `wsd`, constant and then linear over the last `wsd_decay_samples` (warm-up, stable, decay);
            `inverse_sqrt`, peak x sqrt(warm-up / consumed), never below `floor` (arXiv 1706.03762);
            `seesaw`, peak x sqrt(first batch / batch), the rate that goes with a staircase of `rampcli.schedule.seesaw`.
        batch_coupling: a name in `BATCH_COUPLINGS`: how a batch below the largest scales the rate.
        first_batch_size, largest_batch_size: of the schedule, in samples.
    """

    decay_style: str
    peak: float
    floor: float
    warmup_samples: int
    end_sample: int | None
    wsd_decay_samples: int | None
    batch_coupling: str
    first_batch_size: int
    largest_batch_size: int

    @classmethod
    def over(
        cls,
        plan: TrainingPlan,
        *,
        decay_style: str,
        peak: float,
        floor: float,
        warmup_samples: int | None,
        warmup_steps: int | None,
        wsd_decay_samples: int | None,
        batch_coupling: str,
    ) -> "LearningRate":
        """Over a whole run; a warm-up in optimiser steps is converted to the samples that the ramp consumes in them."""
        if warmup_steps is not None:
            warmup_samples = plan.ramp.samples_after(warmup_steps)
        if wsd_decay_samples is None and plan.end_sample is not None:
            wsd_decay_samples = round(plan.end_sample * WSD_SHARE)
        return cls(
            decay_style=decay_style,
            peak=peak,
            floor=floor,
            warmup_samples=warmup_samples or 0,
            end_sample=plan.end_sample,
            wsd_decay_samples=wsd_decay_samples,
            batch_coupling=batch_coupling,
            first_batch_size=plan.ramp.stages[0].global_batch_size,
            largest_batch_size=max(stage.global_batch_size for stage in plan.ramp.stages),
        )

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """The learning rate of a step with this batch, after which `consumed_samples` are consumed."""
        return self._scheduled(consumed_samples, global_batch_size) * BATCH_COUPLINGS[
            self.batch_coupling
        ](global_batch_size / self.largest_batch_size)

    def _scheduled(self, consumed_samples: int, global_batch_size: int) -> float:
        if consumed_samples < self.warmup_samples:
            return self.peak * consumed_samples / self.warmup_samples
        if self.decay_style == "inverse_sqrt":
            return max(self.floor, self.peak * math.sqrt(self.warmup_samples / consumed_samples))
        if self.decay_style == "seesaw":
            return self.peak * math.sqrt(self.first_batch_size / global_batch_size)
        decay_samples, decay_style = self._decay()
        if decay_samples is None or self.end_sample is None:
            return self.peak
        share = min(
            1.0, max(0.0, (consumed_samples - (self.end_sample - decay_samples)) / decay_samples)
        )
        return self.floor + (self.peak - self.floor) * DECAYS[decay_style](share)

    def _decay(self) -> tuple[int | None, str]:
        """The samples over which the rate decays up to the end, and how."""
        if self.end_sample is None or self.end_sample <= self.warmup_samples:
            return None, "constant"
        if self.decay_style == "wsd":
            return min(
                self.wsd_decay_samples or 0, self.end_sample - self.warmup_samples
            ) or None, "linear"
        return self.end_sample - self.warmup_samples, self.decay_style
