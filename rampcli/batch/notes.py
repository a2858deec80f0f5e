"""What a plan has to say besides its table."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rampcli.batch.ramp import RampSchedule, RampStage
from rampcli.batch.run_settings import DECREASE_KEY, RunLength

MOST_SHOWN = 10


def plan_notes(
    ramp: RampSchedule, stages: Sequence[RampStage], length: RunLength, sequence_length: int
) -> tuple[str, ...]:
    """What of a plan a user may not expect: sizes that are skipped, decreased or fall, and an end that is not where it was asked for.

    Args:
        ramp: the schedule.
        stages: those of it that run.
        length: the end that was asked for.
        sequence_length: tokens per sample.
    """
    notes = []
    walked = {stage.scheduled_batch_size for stage in ramp.stages}
    if skipped := [size for size in ramp.scheduled_sizes() if size not in walked]:
        notes.append(
            f"skipped, because their share of the ramp is shorter than one batch: {_few(map(str, skipped))}"
        )
    if decreased := [
        stage for stage in stages if stage.global_batch_size != stage.scheduled_batch_size
    ]:
        shown = _few(
            f"{stage.scheduled_batch_size} to {stage.global_batch_size}" for stage in decreased
        )
        notes.append(f"decreased to whole micro batches on every rank ({DECREASE_KEY}): {shown}")
    falls = [
        (one, other)
        for one, other in pairwise(stages)
        if other.global_batch_size < one.global_batch_size
    ]
    if falls and not decreased:
        shown = _few(
            f"{one.global_batch_size} to {other.global_batch_size} at sample {other.first_sample:,}"
            for one, other in falls
        )
        notes.append(f"the batch shrinks, as scheduled: {shown}")
    end = stages[-1].end_sample
    if end is not None and stages[-1].scheduled_batch_size != ramp.target:
        notes.append(f"the run ends before the ramp reaches its target {ramp.target}")
    if end is not None and length.max_samples is not None and end > length.max_samples:
        notes.append(
            f"a run ends with a whole step: {end:,} samples, not trainer.max_samples={length.max_samples}"
        )
    if (
        end is not None
        and length.max_tokens is not None
        and end * sequence_length > length.max_tokens
    ):
        notes.append(
            f"a run ends with a whole step: {end * sequence_length:,} tokens, not trainer.max_tokens={length.max_tokens}"
        )
    return tuple(notes)


def _few(items: Iterable[str]) -> str:
    """The first of them, and how many there are."""
    listed = list(items)
    return ", ".join(listed[:MOST_SHOWN]) + (
        f", ... ({len(listed):,} in all)" if len(listed) > MOST_SHOWN else ""
    )
