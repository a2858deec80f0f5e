"""Batch-size ramp: the global batch size as a function of consumed samples.

Every ramp comes down to thresholds: from a number of consumed samples on, a step has a batch size.
Steps are never cut. A stage therefore takes the fewest whole steps that reach the next threshold.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from rampcli.batch.division import nearest_divisors, nearest_multiples
from rampcli.batch.plan import GLOBAL_KEY, check_counts
from rampcli.errors import UsageError, set_to

RAMP_KEY = "model.rampup_batch_size"
SEMANTICS_KEY = "rampup.semantics"
MOST_SIZES = 10_000
"""Most batch sizes in one ramp. A ramp with more has a mistyped increment."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Steps that start after `first_sample` consumed samples have `global_batch_size` samples."""

    first_sample: int
    global_batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StageExtent:
    """Consecutive steps with one global batch size, without the processes that take them.

    Attributes:
        stage: number of the stage, from 0.
        global_batch_size: samples per optimiser step.
        first_sample: samples consumed before the stage, from the start of the run.
        samples: samples that the stage consumes, or None if it is open.
        first_step: optimiser steps before the stage, from the start of the run.
        steps: optimiser steps of the stage, or None if it is open.
    """

    stage: int
    global_batch_size: int
    first_sample: int
    samples: int | None
    first_step: int
    steps: int | None

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the stage, or None if it is open."""
        return None if self.samples is None else self.first_sample + self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class RampStage(StageExtent):
    """A stage of a schedule.

    Attributes:
        scheduled_batch_size: batch size of the schedule. It is larger than `global_batch_size` if
            the batch was decreased (`rampup.decrease_batch_size_if_needed`).
    """

    scheduled_batch_size: int


@dataclass(frozen=True, kw_only=True)
class RampSchedule:
    """The global batch size as a pure function of consumed samples.

    Attributes:
        thresholds: in ascending order, the first at sample 0. If several are at the same sample,
            the last one applies.
        decreased: batch size that runs, by scheduled batch size, for sizes that were decreased.
    """

    thresholds: tuple[Threshold, ...]
    decreased: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def constant(cls, global_batch_size: int) -> "RampSchedule":
        """Returns a schedule of one open stage."""
        return cls.from_rampup(None, global_batch_size=global_batch_size)

    @classmethod
    def from_rampup(
        cls,
        rampup_batch_size: Sequence[int] | None,
        *,
        global_batch_size: int,
        semantics: str = "megatron",
        target_key: str = GLOBAL_KEY,
    ) -> "RampSchedule":
        """Builds a schedule from `model.rampup_batch_size` and the target batch size.

        Args:
            rampup_batch_size: `[start, increment, samples]`, or None for a constant batch. The
                start and the increment are in samples per step.
            global_batch_size: the target, in samples per step.
            semantics: `"megatron"` or `"maxtext"`; decides where the batch grows.
            target_key: setting of the target, for messages.

        Raises:
            UsageError: wrong number of values, a value out of range, a start above the target or,
                for MaxText, at it, or an increment that does not divide the rise.
        """
        check_counts({GLOBAL_KEY: global_batch_size})
        if rampup_batch_size is None:
            return cls(thresholds=(Threshold(0, global_batch_size),))
        start, increment, samples = _check(
            rampup_batch_size, global_batch_size, semantics, target_key
        )
        thresholds = SEMANTICS[semantics].thresholds(start, increment, samples, global_batch_size)
        return cls(thresholds=tuple(thresholds))

    def with_decreased(self, decreased: Mapping[int, int]) -> "RampSchedule":
        """Returns the same thresholds with some scheduled batch sizes decreased.

        Samples are counted as they run.
        """
        return RampSchedule(thresholds=self.thresholds, decreased=decreased)

    def after(self, samples: int) -> "RampSchedule":
        """Returns what is left of the schedule after some samples, which it then counts from."""
        if samples == 0:
            return self
        begun = self._threshold_at(samples)
        first = Threshold(0, self.thresholds[begun].global_batch_size)
        ahead = [
            Threshold(one.first_sample - samples, one.global_batch_size)
            for one in self.thresholds[begun + 1 :]
        ]
        return RampSchedule(thresholds=(first, *ahead), decreased=self.decreased)

    @property
    def target(self) -> int:
        """The scheduled global batch size at the end."""
        return self.thresholds[-1].global_batch_size

    def scheduled_sizes(self) -> list[int]:
        """Returns every scheduled batch size in ascending order, including skipped ones.

        A size is skipped if its stage would be shorter than one batch.
        """
        return sorted({threshold.global_batch_size for threshold in self.thresholds})

    def distinct_thresholds(self) -> tuple[Threshold, ...]:
        """Returns the thresholds that apply: the last one at each sample."""
        return tuple({threshold.first_sample: threshold for threshold in self.thresholds}.values())

    def global_batch_size_at(self, consumed_samples: int) -> int:
        """Returns the batch size of a step that starts after `consumed_samples`. O(log stages)."""
        if consumed_samples < 0:
            raise ValueError(f"consumed_samples={consumed_samples} is negative")
        scheduled = self.thresholds[self._threshold_at(consumed_samples)].global_batch_size
        return self.decreased.get(scheduled, scheduled)

    @cached_property
    def stages(self) -> tuple[RampStage, ...]:
        """The stages that run, from sample 0; the last one is open. O(batch sizes)."""
        stages: list[RampStage] = []
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
                    stage=len(stages),
                    global_batch_size=size,
                    scheduled_batch_size=scheduled,
                    first_sample=consumed,
                    samples=None if steps is None else steps * size,
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
        """Returns the stage, from 0, of a step after `consumed_samples`. O(log stages)."""
        return bisect_right(self.stages, consumed_samples, key=attrgetter("first_sample")) - 1

    def stage_at(self, consumed_samples: int) -> RampStage:
        """Returns the stage of a step that starts after `consumed_samples`. O(log stages)."""
        return self.stages[self.stage_index_at(consumed_samples)]

    def samples_after(self, steps: int) -> int:
        """Returns the samples that the first `steps` optimiser steps consume. O(log stages)."""
        stage = self.stages[bisect_right(self.stages, steps, key=attrgetter("first_step")) - 1]
        return stage.first_sample + (steps - stage.first_step) * stage.global_batch_size

    def steps_to(self, consumed_samples: int) -> int:
        """Returns the fewest optimiser steps that consume `consumed_samples`. O(log stages)."""
        if consumed_samples <= 0:
            return 0
        stage = self.stages[self.stage_index_at(consumed_samples - 1)]
        return stage.first_step - (
            -(consumed_samples - stage.first_sample) // stage.global_batch_size
        )

    def _threshold_at(self, consumed_samples: int) -> int:
        return bisect_right(self.thresholds, consumed_samples, key=attrgetter("first_sample")) - 1


def megatron_thresholds(start: int, increment: int, samples: int, target: int) -> list[Threshold]:
    """Computes the ramp of NeMo and Megatron-LM in integers.

    After `c` consumed samples the batch is the target if `c > samples`, else
    `start + floor(c * n / samples) * increment` with `n = (target - start) / increment`. The
    original divides floats and is one increment low at some thresholds.

    Source: `num_microbatches_calculator` in Megatron core, up to 0.17.
    """
    increments = (target - start) // increment
    if increments == 0 or samples == 0:
        return [Threshold(0, target)]
    # Increment k is due at the first c with floor(c * n / samples) >= k.
    return [
        Threshold(-(-index * samples // increments), start + index * increment)
        for index in range(increments + 1)
    ]


def maxtext_thresholds(start: int, increment: int, samples: int, target: int) -> list[Threshold]:
    """Computes the ramp of MaxText in integers.

    A counter starts at 0 and adds each batch. When it reaches `samples / n`, the batch grows and
    the counter returns to 0. Samples that a stage reads beyond its share do not count for the next
    one, and every stage has at least one step.

    Source: `RampupBatchManager` in MaxText's `rampup_batch.py`.
    """
    increments = (target - start) // increment
    thresholds = [Threshold(0, start)]
    for size in range(start, target, increment):
        steps = max(1, -(-samples // (increments * size)))
        thresholds.append(Threshold(thresholds[-1].first_sample + steps * size, size + increment))
    return thresholds


@dataclass(frozen=True, kw_only=True, slots=True)
class RampSemantics:
    """A rule that turns `[start, increment, samples]` into thresholds, and its limits.

    Attributes:
        thresholds: called with start, increment, samples and target; returns the thresholds.
        can_be_flat: a ramp may start at its target.
        can_decrease: batch sizes that do not fit may be decreased.
        loads_step_at_once: a step loads its samples in one pass, not one micro batch at a time.
    """

    thresholds: Callable[[int, int, int, int], list[Threshold]]
    can_be_flat: bool = True
    can_decrease: bool = False
    loads_step_at_once: bool = False


SEMANTICS: dict[str, RampSemantics] = {
    "megatron": RampSemantics(thresholds=megatron_thresholds, can_decrease=True),
    "maxtext": RampSemantics(
        thresholds=maxtext_thresholds, can_be_flat=False, loads_step_at_once=True
    ),
}
"""Rules of `rampup.semantics`.

To add ramp semantics: an entry here.
"""


def _check(
    rampup_batch_size: Sequence[int], target: int, semantics: str, target_key: str
) -> tuple[int, int, int]:
    """Returns start, increment and samples if they lead to the target."""
    values = list(rampup_batch_size)
    shown = f"{RAMP_KEY}=[{','.join(str(value) for value in values)}]"
    if len(values) != 3:
        plural = "" if len(values) == 1 else "s"
        raise UsageError(
            f"{shown} has {len(values)} value{plural}; it takes three:"
            " [start batch size, increment, ramp-up samples]",
            keys=(RAMP_KEY,),
            remedy=set_to(RAMP_KEY, [256, 128, 50_000_000]),
        )
    start, increment, samples = values
    for name, value, least in (
        ("start", start, 1),
        ("increment", increment, 1),
        ("number of samples", samples, 0),
    ):
        if value < least:
            raise UsageError(
                f"{shown}: the {name} {value} is below {least}",
                keys=(RAMP_KEY,),
                remedy=f"{'an' if name[0] == 'i' else 'a'} {name} of at least {least}",
            )
    if start > target:
        raise UsageError(
            f"{shown} starts at {start}, above {target_key}={target}",
            keys=(RAMP_KEY, GLOBAL_KEY),
            remedy=f"a start of at most {target}",
        )
    if start == target and not SEMANTICS[semantics].can_be_flat:
        raise UsageError(
            f"{RAMP_KEY} starts at {target_key}={target}, but {SEMANTICS_KEY}={semantics}"
            " needs a start below it",
            keys=(RAMP_KEY, GLOBAL_KEY, SEMANTICS_KEY),
            remedy=[set_to(RAMP_KEY, None), f"a start below {target}"],
        )
    _check_increment(shown, start, increment, target, target_key)
    return start, increment, samples


def _check_increment(shown: str, start: int, increment: int, target: int, target_key: str) -> None:
    rise = target - start
    if rise % increment:
        targets = [start + multiple for multiple in nearest_multiples(rise, increment)]
        increments = " or ".join(map(str, nearest_divisors(increment, rise)))
        raise UsageError(
            f"{shown}: from {start} to {target_key}={target} is {rise}, which is not a"
            f" multiple of the increment {increment}",
            keys=(RAMP_KEY, GLOBAL_KEY),
            remedy=[set_to(target_key, *targets), f"an increment of {increments}"],
        )
    if rise // increment >= MOST_SIZES:
        raise UsageError(
            f"{shown} has {rise // increment + 1} batch sizes"
            f" from {start} to {target_key}={target}; the limit is {MOST_SIZES}",
            keys=(RAMP_KEY, GLOBAL_KEY),
            remedy=f"an increment of at least {-(-rise // (MOST_SIZES - 1))}",
        )
