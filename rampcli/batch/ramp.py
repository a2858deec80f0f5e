"""Batch-size ramp-up: which global batch belongs to which sample.

Every semantics comes down to thresholds: from so many consumed samples on, a step has this batch size. A step is never cut, so the
stages that really run follow from the thresholds by walking: a stage takes the fewest whole steps that reach the next threshold.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rampcli.batch.division import nearest_divisors, nearest_multiples
from rampcli.batch.plan import GLOBAL_KEY as TARGET_KEY
from rampcli.errors import UsageError

RAMP_KEY = "model.rampup_batch_size"
SEMANTICS_KEY = "rampup.semantics"
MOST_SIZES = 10_000
"""Batch sizes of one ramp: more are a mistyped increment."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `first_sample` consumed samples on, a step has `global_batch_size` samples."""

    first_sample: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RampStage:
    """A run of steps with one global batch size. `steps` and `samples` are None where the stage has no end of its own.

    `scheduled_batch_size` is what the schedule asks for; it differs where `decrease_batch_size_if_needed` made the batch smaller.
    """

    global_batch_size: int
    scheduled_batch_size: int
    first_sample: int
    first_step: int
    steps: int | None

    @property
    def samples(self) -> int | None:
        """Samples that the stage consumes, all its steps together."""
        return None if self.steps is None else self.steps * self.global_batch_size

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at which the next stage begins; None where there is none."""
        return (
            None if self.steps is None else self.first_sample + self.steps * self.global_batch_size
        )


@dataclass(frozen=True, kw_only=True)
class RampSchedule:
    """The global batch size as a pure function of consumed samples.

    Attributes:
        thresholds: in rising order, the first at sample 0; of several at one sample the last one holds.
        decreased: the batch size that runs instead of a scheduled one.
    """

    thresholds: tuple[Threshold, ...]
    decreased: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def constant(cls, global_batch_size: int) -> "RampSchedule":
        """No ramp: one stage that never ends."""
        return cls.from_rampup(None, global_batch_size=global_batch_size)

    @classmethod
    def from_rampup(
        cls,
        rampup_batch_size: Sequence[int] | None,
        *,
        global_batch_size: int,
        semantics: str = "megatron",
    ) -> "RampSchedule":
        """Build from `model.rampup_batch_size=[start, increment, samples]` and the target batch size.

        Args:
            rampup_batch_size: three counts of samples, or None for no ramp.
            global_batch_size: the target, in samples.
            semantics: `megatron` or `maxtext`: where the batch grows.

        Raises:
            UsageError: wrong number of values, a value out of range, start above the target, or an increment that does not divide.
        """
        if global_batch_size < 1:
            raise UsageError(
                f"{TARGET_KEY}={global_batch_size} is less than one",
                keys=(TARGET_KEY,),
                remedy=f"{TARGET_KEY}=1 or more",
            )
        if rampup_batch_size is None:
            return cls(thresholds=(Threshold(0, global_batch_size),))
        start, increment, samples = _check(rampup_batch_size, global_batch_size)
        return cls(
            thresholds=tuple(SEMANTICS[semantics](start, increment, samples, global_batch_size))
        )

    def with_decreased(self, decreased: Mapping[int, int]) -> "RampSchedule":
        """The same schedule, with other batch sizes run instead of some scheduled ones; samples are counted as they are run."""
        return RampSchedule(thresholds=self.thresholds, decreased=decreased)

    @property
    def target(self) -> int:
        """The scheduled global batch size at the end."""
        return self.thresholds[-1].global_batch_size

    def scheduled_sizes(self) -> list[int]:
        """Every batch size of the schedule once, smallest first, also those that a stage shorter than one batch skips."""
        return sorted({threshold.global_batch_size for threshold in self.thresholds})

    def global_batch_size_at(self, consumed_samples: int) -> int:
        """The global batch size of a step that starts after `consumed_samples`. O(log stages)."""
        if consumed_samples < 0:
            raise ValueError(f"consumed_samples={consumed_samples} is negative")
        scheduled = self.thresholds[self._threshold_at(consumed_samples)].global_batch_size
        return self.decreased.get(scheduled, scheduled)

    @cached_property
    def stages(self) -> tuple[RampStage, ...]:
        """The stages that really run, from sample 0; the last one is open. Costs O(batch sizes), whatever the samples."""
        stages = []
        consumed = step = index = 0
        while True:
            scheduled = self.thresholds[index].global_batch_size
            size = self.decreased.get(scheduled, scheduled)
            last = index + 1 == len(self.thresholds)
            steps = (
                None if last else -(-(self.thresholds[index + 1].first_sample - consumed) // size)
            )
            stages.append(
                RampStage(
                    global_batch_size=size,
                    scheduled_batch_size=scheduled,
                    first_sample=consumed,
                    first_step=step,
                    steps=steps,
                )
            )
            if steps is None:
                return tuple(stages)
            step += steps
            consumed += steps * size
            index = self._threshold_at(consumed)

    def stage_index_at(self, consumed_samples: int) -> int:
        """The stage (from 0) of the step that starts after `consumed_samples`. O(log stages)."""
        return bisect_right(self._first_samples, consumed_samples) - 1

    def stage_at(self, consumed_samples: int) -> RampStage:
        """That stage: its batch, its first sample and step, its steps and the next boundary. O(log stages)."""
        return self.stages[self.stage_index_at(consumed_samples)]

    def samples_after(self, steps: int) -> int:
        """Samples consumed by the first `steps` optimiser steps. O(log stages)."""
        stage = self.stages[bisect_right(self._first_steps, steps) - 1]
        return stage.first_sample + (steps - stage.first_step) * stage.global_batch_size

    def steps_to(self, consumed_samples: int) -> int:
        """The fewest optimiser steps that consume at least `consumed_samples`. O(log stages)."""
        if consumed_samples <= 0:
            return 0
        stage = self.stages[self.stage_index_at(consumed_samples - 1)]
        return stage.first_step - (
            -(consumed_samples - stage.first_sample) // stage.global_batch_size
        )

    def _threshold_at(self, consumed_samples: int) -> int:
        return bisect_right(self._threshold_samples, consumed_samples) - 1

    @cached_property
    def _threshold_samples(self) -> list[int]:
        return [threshold.first_sample for threshold in self.thresholds]

    @cached_property
    def _first_samples(self) -> list[int]:
        return [stage.first_sample for stage in self.stages]

    @cached_property
    def _first_steps(self) -> list[int]:
        return [stage.first_step for stage in self.stages]


def megatron_thresholds(start: int, increment: int, samples: int, target: int) -> list[Threshold]:
    """NeMo and Megatron-LM (core's `num_microbatches_calculator`, up to 0.17), in integers.

    After `c` consumed samples the batch is the target where `c > samples`, else `start + floor(c * n / samples) * increment` with
    `n = (target - start) / increment`. The original divides floats, and so comes out one increment low at some thresholds.
    """
    increments = (target - start) // increment
    if increments == 0 or samples == 0:
        return [Threshold(0, target)]
    # `k` increments are due at the first c with floor(c * n / samples) >= k; several may be due at one sample, and the last counts.
    return [
        Threshold(-(-index * samples // increments), start + index * increment)
        for index in range(increments + 1)
    ]


def maxtext_thresholds(start: int, increment: int, samples: int, target: int) -> list[Threshold]:
    """MaxText's `RampupBatchManager`, in integers.

    A counter starts at 0 and adds each batch; once it reaches `samples / n` the batch grows and the counter returns to 0. So what a
    stage reads too much is lost to the next, and every stage has at least one step.

    Raises:
        UsageError: the start is not below the target.
    """
    if start == target:
        raise UsageError(
            f"{RAMP_KEY} starts at {TARGET_KEY}={target} itself, and {SEMANTICS_KEY}=maxtext wants it below",
            keys=(RAMP_KEY, TARGET_KEY, SEMANTICS_KEY),
            remedy=f"{RAMP_KEY}=null, or a start below {target}",
        )
    increments = (target - start) // increment
    thresholds = [Threshold(0, start)]
    for size in range(start, target, increment):
        steps = max(1, -(-samples // (increments * size)))
        thresholds.append(Threshold(thresholds[-1].first_sample + steps * size, size + increment))
    return thresholds


SEMANTICS = {"megatron": megatron_thresholds, "maxtext": maxtext_thresholds}


def _check(rampup_batch_size: Sequence[int], target: int) -> tuple[int, int, int]:
    values = list(rampup_batch_size)
    shown = f"{RAMP_KEY}=[{','.join(str(value) for value in values)}]"
    if len(values) != 3:
        plural = "" if len(values) == 1 else "s"
        raise UsageError(
            f"{shown} has {len(values)} value{plural}; it takes three: [start batch size, increment, ramp-up samples]",
            keys=(RAMP_KEY,),
            remedy=f"{RAMP_KEY}=[256,128,50000000]",
        )
    start, increment, samples = values
    for name, value, least in (
        ("the start", start, 1),
        ("the increment", increment, 1),
        ("the number of samples", samples, 0),
    ):
        if value < least:
            raise UsageError(
                f"{shown}: {name} {value} is below {least}",
                keys=(RAMP_KEY,),
                remedy=f"{name} at least {least}",
            )
    if start > target:
        raise UsageError(
            f"{shown} starts at {start}, above {TARGET_KEY}={target}",
            keys=(RAMP_KEY, TARGET_KEY),
            remedy=f"a start of at most {target}",
        )
    rise = target - start
    if rise % increment:
        targets = " or ".join(
            str(start + multiple) for multiple in nearest_multiples(rise, increment)
        )
        increments = " or ".join(map(str, nearest_divisors(increment, rise)))
        raise UsageError(
            f"{shown}: from {start} to {TARGET_KEY}={target} is {rise}, which is not a multiple of the increment {increment}",
            keys=(RAMP_KEY, TARGET_KEY),
            remedy=f"{TARGET_KEY}={targets}, or an increment of {increments}",
        )
    if rise // increment >= MOST_SIZES:
        raise UsageError(
            f"{shown}: from {start} to {TARGET_KEY}={target} are {rise // increment + 1} batch sizes, and {MOST_SIZES} are the most",
            keys=(RAMP_KEY, TARGET_KEY),
            remedy=f"an increment of at least {-(-rise // (MOST_SIZES - 1))}",
        )
    return start, increment, samples
