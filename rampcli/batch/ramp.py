"""Batch-size ramp-up: which global batch belongs to which sample.

`[start, increment, samples] -> target` as NeMo and Megatron-LM mean it (Megatron core's `num_microbatches_calculator`, up to 0.17),
in integers: after `c` consumed samples the batch is the target where `c > samples`, else `start + floor(c * n / samples) * increment`
with `n = (target - start) / increment`. The original divides floats, and so comes out one increment low at some thresholds.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rampcli.batch.plan import GLOBAL_KEY as TARGET_KEY
from rampcli.batch.plan import nearest_multiples
from rampcli.errors import UsageError

RAMP_KEY = "model.rampup_batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class RampStage:
    """A run of steps with one global batch size. `steps` and `samples` are None where the stage has no end of its own."""

    global_batch_size: int
    first_sample: int
    first_step: int
    steps: int | None

    @property
    def samples(self) -> int | None:
        """Samples that the stage consumes, all its steps together."""
        return None if self.steps is None else self.steps * self.global_batch_size


@dataclass(frozen=True, kw_only=True)
class RampSchedule:
    """The global batch size as a pure function of consumed samples.

    `increments` counts the ramp's steps up; 0 means that the target holds from the start.
    """

    start: int
    increment: int
    increments: int
    samples: int

    @classmethod
    def constant(cls, global_batch_size: int) -> "RampSchedule":
        """No ramp: one stage that never ends."""
        return cls.from_rampup(None, global_batch_size=global_batch_size)

    @classmethod
    def from_rampup(cls, rampup_batch_size: Sequence[int] | None, *, global_batch_size: int) -> "RampSchedule":
        """Build from `model.rampup_batch_size=[start, increment, samples]` and the target batch size.

        Raises:
            UsageError: wrong number of values, a value out of range, start above the target, or an increment that does not divide.
        """
        if global_batch_size < 1:
            raise UsageError(f"{TARGET_KEY}={global_batch_size} is less than one", keys=(TARGET_KEY,), remedy=f"{TARGET_KEY}=1 or more")
        if rampup_batch_size is None:
            return cls(start=global_batch_size, increment=0, increments=0, samples=0)
        start, increment, samples = _check(rampup_batch_size, global_batch_size)
        if start == global_batch_size or samples == 0:
            return cls.constant(global_batch_size)
        return cls(start=start, increment=increment, increments=(global_batch_size - start) // increment, samples=samples)

    @property
    def target(self) -> int:
        """The global batch size at the end of the ramp."""
        return self.start + self.increments * self.increment

    def nominal_sizes(self) -> list[int]:
        """Every batch size of the ramp in order, also those that a stage shorter than one batch skips."""
        return [self.start + index * self.increment for index in range(self.increments + 1)]

    def global_batch_size_at(self, consumed_samples: int) -> int:
        """The global batch size of the step that starts after `consumed_samples`. O(1)."""
        if consumed_samples < 0:
            raise ValueError(f"consumed_samples={consumed_samples} is negative")
        return self.start + self._increments_at(consumed_samples) * self.increment

    @cached_property
    def stages(self) -> tuple[RampStage, ...]:
        """The stages that really run, from sample 0; the last one is open. Cost: O(increments), whatever the samples."""
        stages = []
        consumed = step = index = 0
        while index < self.increments:
            size = self.start + index * self.increment
            threshold = -(-(index + 1) * self.samples // self.increments)  # first c with floor(c * n / samples) > index
            steps = -(-(threshold - consumed) // size)
            stages.append(RampStage(global_batch_size=size, first_sample=consumed, first_step=step, steps=steps))
            step += steps
            consumed += steps * size
            index = self._increments_at(consumed)
        stages.append(RampStage(global_batch_size=self.target, first_sample=consumed, first_step=step, steps=None))
        return tuple(stages)

    @cached_property
    def _first_samples(self) -> list[int]:
        return [stage.first_sample for stage in self.stages]

    @cached_property
    def _first_steps(self) -> list[int]:
        return [stage.first_step for stage in self.stages]

    def stage_index_at(self, consumed_samples: int) -> int:
        """The stage (from 0) of the step that starts after `consumed_samples`. O(log stages)."""
        return bisect_right(self._first_samples, consumed_samples) - 1

    def samples_after(self, steps: int) -> int:
        """Consumed samples after `steps` optimiser steps from the start. O(log stages)."""
        stage = self.stages[bisect_right(self._first_steps, steps) - 1]
        return stage.first_sample + (steps - stage.first_step) * stage.global_batch_size

    def steps_to(self, consumed_samples: int) -> int:
        """The fewest optimiser steps from the start that consume at least `consumed_samples`. O(log stages)."""
        stage = self.stages[self.stage_index_at(consumed_samples)]
        return stage.first_step - (-(consumed_samples - stage.first_sample) // stage.global_batch_size)

    def _increments_at(self, consumed_samples: int) -> int:
        if consumed_samples >= self.samples:
            return self.increments
        return consumed_samples * self.increments // self.samples


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
    for name, value, least in (("start", start, 1), ("increment", increment, 1), ("samples", samples, 0)):
        if value < least:
            raise UsageError(f"{shown}: {name} {value} is below {least}", keys=(RAMP_KEY,), remedy=f"a {name} of at least {least}")
    if start > target:
        raise UsageError(
            f"{shown} starts at {start}, above {TARGET_KEY}={target}",
            keys=(RAMP_KEY, TARGET_KEY),
            remedy=f"a start of at most {target}",
        )
    if (target - start) % increment:
        targets = " or ".join(str(start + rise) for rise in nearest_multiples(target - start, increment))
        raise UsageError(
            f"{shown}: from {start} to {TARGET_KEY}={target} is {target - start}, which is not a multiple of the increment {increment}",
            keys=(RAMP_KEY, TARGET_KEY),
            remedy=f"{TARGET_KEY}={targets}, or an increment that divides {target - start}",
        )
    return start, increment, samples
