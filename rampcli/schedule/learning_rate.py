"""The learning rate as a function of consumed samples, so that small batches do not stretch it."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WSD_SHARE = 0.1
"""Default share of a run over which `wsd` decays (arXiv 2404.06395, section 4)."""


@dataclass(frozen=True, slots=True)
class Step:
    """An optimiser step of `global_batch_size` samples that ends at `consumed_samples`."""

    consumed_samples: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """Linear warm-up to `peak`, then a decay to `floor`.

    Attributes:
        decay_style: name in `DECAY_STYLES`, or of an extension.
        peak: rate at the end of the warm-up.
        start: rate at the beginning of the warm-up.
        floor: lowest rate after the warm-up.
        end_sample: samples of the run, or None if it has no end.
        wsd_decay_samples: samples over which `wsd` decays, or None if the run has no end.
        batch_coupling: name in `BATCH_COUPLINGS`, or an exponent.
        lr_factors: factor of the rate in each stage of the schedule, or None.
        stage_starts: samples consumed before each stage.
        own_decay: rate of a step after the warm-up, if the style is an extension.
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

    def at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the learning rate of a step.

        Args:
            consumed_samples: samples consumed at the end of the step.
            global_batch_size: samples of the step.
        """
        rate = self.uncoupled_at(consumed_samples, global_batch_size=global_batch_size)
        return rate * self.factor_at(consumed_samples, global_batch_size=global_batch_size)

    def uncoupled_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the rate of a step before its stage or its batch scales it.

        The arguments are those of `at`.
        """
        if consumed_samples < self.warmup_samples:
            rise = (self.peak - self.start) * consumed_samples / self.warmup_samples
            return self.start + rise
        decay = self.own_decay or DECAY_STYLES[self.decay_style].rate
        return decay(self, Step(consumed_samples, global_batch_size))

    def factor_at(self, consumed_samples: int, *, global_batch_size: int) -> float:
        """Returns the factor by which its stage or its batch scales the rate of a step.

        The arguments are those of `at`.
        """
        if self.lr_factors is not None:
            return self.lr_factors[
                bisect_right(self.stage_starts, max(0, consumed_samples - 1)) - 1
            ]
        share = global_batch_size / self.largest_batch_size
        return coupling_factor(self.batch_coupling, share)


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


@dataclass(frozen=True, slots=True)
class BatchCoupling:
    """How a batch below the largest scales the learning rate.

    Attributes:
        about: the factor, for the description of `schedule.batch_coupling`.
        factor: maps the batch as a share of the largest one to a factor of the learning rate.
    """

    about: str
    factor: Callable[[float], float]


BATCH_COUPLINGS: dict[str, BatchCoupling] = {
    "none": BatchCoupling("by 1", lambda _: 1.0),
    "sqrt": BatchCoupling("by the square root of r", math.sqrt),  # arXiv 2205.10287
    "linear": BatchCoupling("by r", lambda share: share),  # arXiv 1706.02677
}


def coupling_factor(coupling: str | float, share: float) -> float:
    """Returns the factor of the learning rate by a coupling, which may be an exponent.

    Args:
        share: the batch divided by the one whose rate is known.
    """
    if isinstance(coupling, str):
        return BATCH_COUPLINGS[coupling].factor(share)
    return math.pow(share, coupling)
