"""The learning rate as a function of consumed samples, so that small batches do not stretch it.

A schedule counts samples, or whole shares of samples if these differ in length between phases.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rampcli.schedule.couplings import (
    BETA2_COUPLINGS,
    WEIGHT_DECAY_COUPLINGS,
    coupling_factor,
)

WSD_SHARE = 0.1
"""Default share of a run over which `wsd` decays (arXiv 2404.06395, section 4)."""


@dataclass(frozen=True, slots=True)
class Step:
    """An optimiser step of `global_batch_size` samples that ends at `consumed_samples`."""

    consumed_samples: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """The learning rate of a phase: linear warm-up to `peak`, then a decay to `floor`.

    Methods take samples of the run. The attributes, and a `Step`, have what the schedule counts.

    Attributes:
        decay_style: name in `DECAY_STYLES`, or of an extension.
        peak: rate at the end of the warm-up.
        start: rate at the beginning of the warm-up.
        floor: lowest rate after the warm-up.
        end_sample: length of the schedule, or None if it has no end.
        wsd_decay_samples: samples over which `wsd` decays, or None if the run has no end.
        batch_coupling: name in `BATCH_COUPLINGS`, or an exponent.
        lr_factors: factor of the rate in each stage of the schedule, or None.
        stage_starts: samples consumed before each stage.
        own_decay: rate of a step after the warm-up, if the style is an extension.
        first_sample: samples that the run has consumed when the phase begins.
        first_count: what has been counted by then: 0 for a schedule of the phase's own.
        counts_per_sample: what is counted for a sample of the phase.
    """

    decay_style: str
    peak: float
    floor: float
    warmup_samples: int
    end_sample: int | None
    wsd_decay_samples: int | None
    batch_coupling: str | float
    first_batch_size: int
    largest_batch_size: float
    lr_factors: Sequence[float] | None = None
    stage_starts: tuple[int, ...] = (0,)
    own_decay: "Callable[[LearningRate, Step], float] | None" = None
    start: float = 0.0
    first_sample: int = 0
    first_count: int = 0
    counts_per_sample: int = 1

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the learning rate of a step.

        Args:
            consumed_samples: samples of the run at the end of the step.
            global_batch_size: samples of the step.
        """
        rate = self.uncoupled_at(consumed_samples, global_batch_size=global_batch_size)
        return rate * self.factor_at(consumed_samples, global_batch_size=global_batch_size)

    def uncoupled_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the rate of a step before its stage or its batch scales it.

        The arguments are those of `at`.
        """
        count = self._count(consumed_samples)
        if count < self.warmup_samples:
            return self.start + (self.peak - self.start) * count / self.warmup_samples
        decay = self.own_decay or DECAY_STYLES[self.decay_style].rate
        return decay(self, Step(count, global_batch_size * self.counts_per_sample))

    def factor_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the factor by which its stage or its batch scales the rate of a step.

        The arguments are those of `at`.
        """
        if self.lr_factors is not None:
            begun = max(0, self._count(consumed_samples) - 1)
            return self.lr_factors[bisect_right(self.stage_starts, begun) - 1]
        share = global_batch_size * self.counts_per_sample / self.largest_batch_size
        return coupling_factor(self.batch_coupling, share)

    def is_warming_up(self, consumed_samples: int) -> bool:
        """Returns whether a step that ends at `consumed_samples` is before the end of a warm-up."""
        return self._count(consumed_samples) < self.warmup_samples

    def _count(self, consumed_samples: int) -> int:
        return self.first_count + (consumed_samples - self.first_sample) * self.counts_per_sample


Curve = Callable[[float], float]
"""Maps the share of the decay that has passed to the share of `peak - floor` left."""


def _until_the_end(curve: Curve) -> "Callable[[LearningRate, Step], float]":
    """Returns a decay from the end of the warm-up to the end of the run."""
    return lambda schedule, step: _decay(
        schedule, step, curve, over=_samples_after_warmup(schedule)
    )


def wsd(schedule: LearningRate, step: Step) -> float:
    """Warm-up, stable, decay: constant, then linear over the last `wsd_decay_samples`."""
    after_warmup = _samples_after_warmup(schedule)
    over = min(schedule.wsd_decay_samples or 0, after_warmup)
    return _decay(schedule, step, lambda share: 1 - share, over=over)


def inverse_sqrt(schedule: LearningRate, step: Step) -> float:
    """Falls as sqrt(warm-up / consumed samples), also in a run without end (arXiv 1706.03762)."""
    fall = math.sqrt(schedule.warmup_samples / step.consumed_samples)
    return max(schedule.floor, schedule.peak * fall)


def seesaw(schedule: LearningRate, step: Step) -> float:
    """Falls as sqrt(first batch / batch), for a staircase of `rampcli.schedule.seesaw`."""
    return schedule.peak * math.sqrt(schedule.first_batch_size / step.global_batch_size)


def _samples_after_warmup(schedule: LearningRate) -> int:
    """Returns the samples between the end of the warm-up and of the run, or 0 without an end."""
    return 0 if schedule.end_sample is None else schedule.end_sample - schedule.warmup_samples


def _decay(schedule: LearningRate, step: Step, curve: Curve, *, over: int) -> float:
    """Returns the rate of a decay from peak to floor over the last `over` samples of the run.

    The rate stays at the peak if there are none, or if the run has no end.
    """
    if schedule.end_sample is None or over <= 0:
        return schedule.peak
    begin = schedule.end_sample - over
    share = min(1.0, max(0.0, (step.consumed_samples - begin) / over))
    return schedule.floor + (schedule.peak - schedule.floor) * curve(share)


@dataclass(frozen=True, slots=True)
class DecayStyle:
    """How the learning rate falls after the warm-up, and which settings belong to it.

    Attributes:
        about: the shape of the decay, for the description of `schedule.decay_style`.
        rate: rate of a step after the warm-up.
        needs_warmup: the rate is undefined without a warm-up.
        takes_decay_samples: uses `schedule.wsd_decay_samples`.
    """

    about: str
    rate: Callable[[LearningRate, Step], float]
    needs_warmup: bool = False
    takes_decay_samples: bool = False


DECAY_STYLES: dict[str, DecayStyle] = {
    "constant": DecayStyle("no decay", _until_the_end(lambda _: 1.0)),
    "linear": DecayStyle(
        "a straight line to `optim.min_lr`", _until_the_end(lambda share: 1 - share)
    ),
    # arXiv 1608.03983, without restarts
    "cosine": DecayStyle(
        "half a wave of a cosine to `optim.min_lr`",
        _until_the_end(lambda share: (1 + math.cos(math.pi * share)) / 2),
    ),
    # arXiv 2510.14717
    "quarter_cosine": DecayStyle(
        "the first quarter of a cosine to `optim.min_lr`",
        _until_the_end(lambda share: math.cos(math.pi / 2 * share)),
    ),
    "wsd": DecayStyle(
        "constant, then a straight line to `optim.min_lr`", wsd, takes_decay_samples=True
    ),
    "inverse_sqrt": DecayStyle(
        "proportional to 1 / sqrt(samples)", inverse_sqrt, needs_warmup=True
    ),
    "seesaw": DecayStyle("proportional to 1 / sqrt(batch size)", seesaw),
}
"""Decay styles by `schedule.decay_style`.

To add a decay style of the learning rate: an entry here.
"""
OF_EXTENSION = DecayStyle("an extension", DECAY_STYLES["constant"].rate, takes_decay_samples=True)
"""Stands for a style that is an extension, whose rate is `LearningRate.own_decay`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepValues:
    """What the groups of the optimisers are set to in a step. None leaves a value as it is."""

    lr: float
    beta2: float | None = None
    weight_decay: float | None = None

    def coupled(self) -> dict[str, float]:
        """Returns the values beside the learning rate that follow the batch, by name."""
        values = {"beta2": self.beta2, "weight_decay": self.weight_decay}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Couplings:
    """The values of the optimiser over a run.

    Attributes:
        beta2, weight_decay: values at the largest batch.
        beta2_coupling: name in `BETA2_COUPLINGS`.
        weight_decay_coupling: name in `WEIGHT_DECAY_COUPLINGS`.
    """

    beta2: float
    weight_decay: float
    beta2_coupling: str
    weight_decay_coupling: str

    def at(
        self, rate: LearningRate, consumed_samples: int, *, global_batch_size: int
    ) -> StepValues:
        """Returns the values of a step.

        Args:
            rate: the learning rate of the phase.
            consumed_samples: samples of the run at the end of the step.
            global_batch_size: samples of the step.
        """
        share = global_batch_size / (rate.largest_batch_size / rate.counts_per_sample)
        factor = rate.factor_at(consumed_samples, global_batch_size=global_batch_size)
        of_beta2 = BETA2_COUPLINGS[self.beta2_coupling].value
        of_decay = WEIGHT_DECAY_COUPLINGS[self.weight_decay_coupling].value
        return StepValues(
            lr=rate.at(consumed_samples, global_batch_size=global_batch_size),
            beta2=of_beta2 and of_beta2(self.beta2, share, factor),
            weight_decay=of_decay and of_decay(self.weight_decay, share, factor),
        )
