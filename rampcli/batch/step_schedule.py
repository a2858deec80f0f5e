"""`model.step_batch_size_schedule`: batch sizes at thresholds that are written down, growing or not.

The text is that of Megatron-LM's `--step-batch-size-schedule`: `"0:768 250B:1536 500B:3072"`, thresholds in tokens; with `samples:`
in front, in samples. Where Megatron-LM turns a batch of `1.2345K` into 1234, we refuse it.
"""

from collections.abc import Sequence
from itertools import pairwise

from rampcli.batch.quantities import parse_count
from rampcli.batch.ramp import MOST_SIZES, RampSchedule, Threshold
from rampcli.errors import UsageError

SCHEDULE_KEY = "model.step_batch_size_schedule"
LENGTH_KEY = "data.sequence_length"
EXAMPLE = f"{SCHEDULE_KEY}='0:768 250B:1536 500B:3072'"


def from_step_schedule(text: str, *, sequence_length: int) -> RampSchedule:
    """The schedule that a text means.

    Args:
        text: `THRESHOLD:BATCH_SIZE` entries between spaces or commas, in any order; counts may be written `1.5K`, `250B`.
        sequence_length: tokens per sample. A threshold in tokens is that of the last sample that they complete.

    Raises:
        UsageError: an entry that is none, no entry at 0, a batch size below one, or two entries for one sample.
    """
    unit, entries = _entries(text)
    if not entries:
        raise UsageError(
            f"{SCHEDULE_KEY}={text!r} has no entries", keys=(SCHEDULE_KEY,), remedy=EXAMPLE
        )
    thresholds = []
    for count, size in sorted(entries):
        if size < 1:
            raise UsageError(
                f"{SCHEDULE_KEY}={text!r}: batch size {size} is below 1",
                keys=(SCHEDULE_KEY,),
                remedy=EXAMPLE,
            )
        thresholds.append(Threshold(count if unit == "samples" else count // sequence_length, size))
    _check_order(
        text,
        unit,
        [count for count, _ in sorted(entries)],
        thresholds,
        sequence_length=sequence_length,
    )
    return RampSchedule(thresholds=tuple(thresholds))


def to_text(thresholds: Sequence[Threshold]) -> str:
    """The text of thresholds in samples."""
    return "samples: " + " ".join(
        f"{threshold.first_sample}:{threshold.global_batch_size}" for threshold in thresholds
    )


def _entries(text: str) -> tuple[str, list[tuple[int, int]]]:
    unit, rest = "tokens", text.strip()
    for name in ("samples", "tokens"):
        if rest.startswith(f"{name}:"):
            unit, rest = name, rest.removeprefix(f"{name}:")
    words = rest.replace(",", " ").split()
    if len(words) > MOST_SIZES:
        raise UsageError(
            f"{SCHEDULE_KEY} has {len(words)} entries, and {MOST_SIZES} are the most",
            keys=(SCHEDULE_KEY,),
        )
    return unit, [_entry(text, word) for word in words]


def _entry(text: str, word: str) -> tuple[int, int]:
    numbers = [parse_count(part) for part in word.split(":")]
    if len(numbers) != 2 or None in numbers:
        raise UsageError(
            f"{SCHEDULE_KEY}={text!r}: {word!r} is not THRESHOLD:BATCH_SIZE, two whole numbers like 250B:1536",
            keys=(SCHEDULE_KEY,),
            remedy=EXAMPLE,
        )
    return numbers[0] or 0, numbers[1] or 0


def _check_order(
    text: str, unit: str, counts: list[int], thresholds: list[Threshold], *, sequence_length: int
) -> None:
    if counts[0] != 0:
        raise UsageError(
            f"{SCHEDULE_KEY}={text!r} begins at {counts[0]}: there is no batch size for the first step",
            keys=(SCHEDULE_KEY,),
            remedy=f"an entry 0:{thresholds[0].global_batch_size}",
        )
    for (one, other), (count, next_count) in zip(
        pairwise(thresholds), pairwise(counts), strict=True
    ):
        if one.first_sample == other.first_sample:
            why = (
                f" ({LENGTH_KEY}={sequence_length} tokens make one sample)"
                if count != next_count
                else ""
            )
            raise UsageError(
                f"{SCHEDULE_KEY}={text!r}: {count} and {next_count} {unit} are one threshold{why}",
                keys=(SCHEDULE_KEY, *([LENGTH_KEY] if why else [])),
                remedy="one entry for it",
            )
