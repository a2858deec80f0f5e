"""Notes below the table of a plan."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rampcli.batch import position
from rampcli.batch.plan import MICRO_KEY, SAMPLE_UNIT, BatchUnit
from rampcli.batch.position import TOKENS_UNIT, Goal
from rampcli.batch.ramp import RampSchedule, RampStage
from rampcli.batch.run_settings import DECREASE_KEY

MOST_NOTED = 10
MANY_MICRO_BATCHES = 16
"""Micro batches per step from which on a note recommends larger ones.

At 16, an exchange that takes as long as a micro batch is 6% of a step.
"""


def plan_notes(
    ramp: RampSchedule,
    stages: Sequence[RampStage],
    ends: Sequence[Goal] | None,
    sequence_length: int,
    *,
    unit: BatchUnit = SAMPLE_UNIT,
) -> tuple[str, ...]:
    """Returns notes on what a user may not expect of a plan.

    They name batch sizes that are skipped or decreased, samples where the batch shrinks, and an end
    of the run that differs from the requested one.

    Args:
        stages: stages of the schedule that run.
        ends: the requested end of the run. None for a phase, whose end has no notes.
        sequence_length: tokens per sample.
    """
    notes = tuple(_size_notes(ramp, stages, unit))
    if ends is None:
        return notes
    return (*notes, *_end_notes(ramp, stages[-1], ends, sequence_length, unit))


def accumulation_notes(micro_batches: int, *, micro_key: str = MICRO_KEY) -> list[str]:
    """Returns the note that recommends larger micro batches, if a step has many.

    Args:
        micro_batches: most micro batches per rank and step.
        micro_key: setting of their size.
    """
    if micro_batches < MANY_MICRO_BATCHES:
        return []
    return [
        f"{micro_batches} micro batches per step add no throughput, they only amortise the exchange"
        f" of gradients; a larger {micro_key} may add some"
    ]


def _size_notes(ramp: RampSchedule, stages: Sequence[RampStage], unit: BatchUnit) -> Iterator[str]:
    running = {stage.scheduled_batch_size for stage in ramp.stages}
    if skipped := [size for size in ramp.scheduled_sizes() if size not in running]:
        shown = _list_first(map(str, skipped))
        yield f"the ramp skips batch sizes with a share shorter than one batch: {shown}"
    decreased = [stage for stage in stages if stage.global_batch_size != stage.scheduled_batch_size]
    if decreased:
        shown = _list_first(
            f"{stage.scheduled_batch_size} to {stage.global_batch_size}" for stage in decreased
        )
        yield f"decreased to whole micro batches on every rank ({DECREASE_KEY}): {shown}"
        return
    falls = [
        (one, other)
        for one, other in pairwise(stages)
        if other.global_batch_size < one.global_batch_size
    ]
    if falls:
        shown = _list_first(
            f"{one.global_batch_size} to {other.global_batch_size}"
            f" after {other.first_sample:,} {unit.name}"
            for one, other in falls
        )
        yield f"the batch shrinks, as scheduled: {shown}"


def _end_notes(
    ramp: RampSchedule, last: RampStage, ends: Sequence[Goal], sequence_length: int, unit: BatchUnit
) -> Iterator[str]:
    end = last.end_sample
    if end is None:
        return
    if last.scheduled_batch_size != ramp.target:
        yield f"the run ends before the ramp reaches its target {ramp.target}"
    names = {position.SAMPLES_UNIT: unit.name, TOKENS_UNIT: TOKENS_UNIT}
    for goal in ends:
        reached = end * (sequence_length if goal.unit == TOKENS_UNIT else 1)
        if goal.unit in names and reached > goal.count:
            yield (
                f"a run ends with a whole step: {reached:,} {names[goal.unit]},"
                f" not trainer.max_{goal.unit}={goal.count}"
            )


def _list_first(items: Iterable[str]) -> str:
    """Returns the first items and, if there are more, the total."""
    listed = list(items)
    rest = f", ... ({len(listed):,} in all)" if len(listed) > MOST_NOTED else ""
    return ", ".join(listed[:MOST_NOTED]) + rest
