"""`model.step_batch_size_schedule`: explicit batch sizes at thresholds, growing or shrinking.

The syntax is that of Megatron-LM's `--step-batch-size-schedule`: `"0:768 250B:1536 500B:3072"`.
Thresholds are in tokens, in samples after the prefix `samples:`, or in optimiser steps after
`steps:`. Numbers are those that Python's `float` reads, with a unit of either case: `1_000`, `16.`,
`1.6e1`, `250b`. A number that is not whole, such as `1.2345K`, is refused, although Megatron-LM
truncates it to 1234.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rampcli.batch.position import RUN_START, SAMPLES_UNIT, STEPS_UNIT, TOKENS_UNIT, RunPosition
from rampcli.batch.quantities import parse_whole
from rampcli.batch.ramp import MOST_SIZES, RampSchedule, Threshold
from rampcli.errors import Remedy, UsageError, set_to

SCHEDULE_KEY = "model.step_batch_size_schedule"
LENGTH_KEY = "data.sequence_length"
EXAMPLES = {
    TOKENS_UNIT: "0:768 250B:1536 500B:3072",
    SAMPLES_UNIT: "samples: 0:768 60M:1536 120M:3072",
    STEPS_UNIT: "steps: 0:768 50K:1536 100K:3072",
}
"""A schedule in each unit, which is in front of the entries. Without one, they count tokens."""
_OTHER_WORD = re.compile(
    r"\s*(?P<word>(?P<unit>[a-z]{2,})(?:\s*:)?)\s*(?P<entries>.*)", re.I | re.S
)


def from_step_schedule(
    text: str, *, sequence_length: int, before: RunPosition = RUN_START
) -> RampSchedule:
    """Parses a step schedule.

    Args:
        text: `THRESHOLD:BATCH_SIZE` entries in any order, separated by spaces or commas. Counts may
            have units, as in `1.5K` or `250B`.
        sequence_length: tokens per sample. A threshold in tokens is rounded down to whole samples.
            One in steps is exact: the entries `a:SIZE b:OTHER` give a stage of `b - a` steps.
        before: how far a run has come at sample 0 of the result. Earlier entries are left out.

    Raises:
        UsageError: an entry has another form, no entry is at the first sample, a batch size is
            below one, or two entries are at the same sample.
    """
    unit, entries = _parse_entries(text, sequence_length)
    per_sample = sequence_length if unit == TOKENS_UNIT else 1
    thresholds = _thresholds(unit, entries, per_sample)
    _check_order(text, unit, [count for count, _ in entries], thresholds, per_sample=per_sample)
    if before == RUN_START:
        return RampSchedule(thresholds=thresholds)
    begun = before.count(unit)
    ahead = [(max(0, count - begun), size) for count, size in entries]
    last_begun = max(at for at, (count, _) in enumerate(ahead) if count == 0)
    return RampSchedule(thresholds=_thresholds(unit, ahead[last_begun:], per_sample))


def _thresholds(
    unit: str, entries: Sequence[tuple[int, int]], per_sample: int
) -> tuple[Threshold, ...]:
    """Returns (threshold, batch size) entries, which are in order, as thresholds in samples."""
    firsts = _first_samples(unit, entries, per_sample)
    return tuple(Threshold(first, size) for first, (_, size) in zip(firsts, entries, strict=True))


def threshold_unit(text: str) -> str | None:
    """Returns what the thresholds of a step schedule count: a unit of `rampcli.batch.position`.

    None means that the schedule begins with another word.
    """
    return _split_unit(text)[0]


def schedule_text(thresholds: Sequence[Threshold]) -> str:
    """Returns thresholds as the text of a step schedule in samples."""
    return f"samples: {to_entries(thresholds)}"


def to_entries(thresholds: Sequence[Threshold], *, per_sample: int = 1) -> str:
    """Returns thresholds as `THRESHOLD:BATCH_SIZE` entries.

    Args:
        thresholds: in samples.
        per_sample: units per sample, such as the sequence length for thresholds in tokens.
    """
    return " ".join(
        f"{threshold.first_sample * per_sample}:{threshold.global_batch_size}"
        for threshold in thresholds
    )


def _wrong(problem: str, remedy: Remedy) -> UsageError:
    return UsageError(problem, keys=(SCHEDULE_KEY,), remedy=remedy)


def _example(unit: str) -> Remedy:
    return set_to(SCHEDULE_KEY, EXAMPLES[unit])


def _split_unit(text: str) -> tuple[str | None, str]:
    """Returns the unit of the thresholds, None if another word is there, and the entries' text.

    A word is a unit only if a whole entry or nothing follows: `ten:8` is an entry that is wrong.
    """
    for unit in EXAMPLES:
        if text.strip().startswith(f"{unit}:"):
            return unit, text.strip().removeprefix(f"{unit}:")
    other = _OTHER_WORD.fullmatch(text)
    first = other and other["entries"].replace(",", " ").split()[:1]
    is_unit = other is not None and not (first and ":" not in first[0])
    return None if is_unit else TOKENS_UNIT, text


def _wrong_unit(text: str, sequence_length: int) -> UsageError:
    match = _OTHER_WORD.fullmatch(text)
    assert match is not None
    near = difflib.get_close_matches(match["unit"].lower(), EXAMPLES, n=1)
    return _wrong(
        f"{SCHEDULE_KEY}={text!r}: {match['word']!r} in front of the entries is not one of"
        f" {', '.join(f'{unit}:' for unit in EXAMPLES)}",
        set_to(SCHEDULE_KEY, f"{near[0]}: {match['entries']}")
        if near and _is_readable(f"{near[0]}: {match['entries']}", sequence_length)
        else _example(near[0] if near else TOKENS_UNIT),
    )


def _is_readable(text: str, sequence_length: int) -> bool:
    try:
        from_step_schedule(text, sequence_length=sequence_length)
    except UsageError:
        return False
    return True


def _first_samples(unit: str, entries: Sequence[tuple[int, int]], per_sample: int) -> Iterator[int]:
    """Yields the samples consumed before each entry applies.

    Args:
        entries: (threshold, batch size), in order.
        per_sample: units per sample, if thresholds are not in steps.
    """
    if unit != STEPS_UNIT:
        yield from (count // per_sample for count, _ in entries)
        return
    consumed, reached, size = 0, 0, 1
    for count, next_size in entries:
        # A schedule that begins after step 0 is refused later, whatever its sizes.
        consumed += (count - reached) * size
        yield consumed
        reached, size = count, next_size


def _parse_entries(text: str, sequence_length: int) -> tuple[str, list[tuple[int, int]]]:
    """Returns the unit of the thresholds, and (threshold, batch size) of each entry, in order."""
    unit, rest = _split_unit(text)
    if unit is None:
        raise _wrong_unit(text, sequence_length)
    words = rest.replace(",", " ").split()
    if len(words) > MOST_SIZES:
        raise _wrong(
            f"{SCHEDULE_KEY} has {len(words)} entries; the limit is {MOST_SIZES}",
            f"up to {MOST_SIZES} entries",
        )
    if not words:
        raise _wrong(f"{SCHEDULE_KEY}={text!r} has no entries", _example(unit))
    entries = []
    for word in words:
        count, size = map(parse_whole, word.partition(":")[::2])
        if count is None or size is None:
            raise _wrong(
                f"{SCHEDULE_KEY}={text!r}: {word!r} is not THRESHOLD:BATCH_SIZE,"
                f" two whole numbers like {EXAMPLES[unit].split()[-2]}",
                _example(unit),
            )
        if size < 1:
            raise _wrong(f"{SCHEDULE_KEY}={text!r}: batch size {size} is below 1", _example(unit))
        entries.append((count, size))
    return unit, sorted(entries)


def _check_order(
    text: str, unit: str, counts: list[int], thresholds: Sequence[Threshold], *, per_sample: int
) -> None:
    if thresholds[0].first_sample != 0:
        raise _wrong(
            f"{SCHEDULE_KEY}={text!r} begins at {counts[0]}:"
            " there is no batch size for the first step",
            f"an entry 0:{thresholds[0].global_batch_size}",
        )
    for (one, other), (count, next_count) in zip(
        pairwise(thresholds), pairwise(counts), strict=True
    ):
        if count == next_count:
            raise _wrong(
                f"{SCHEDULE_KEY}={text!r}: the threshold {count} is given twice",
                "one entry for this threshold",
            )
        if one.first_sample == other.first_sample:
            raise UsageError(
                f"{SCHEDULE_KEY}={text!r}: {count} and {next_count} {unit} are the same threshold"
                f" ({LENGTH_KEY}={per_sample} tokens make one sample)",
                keys=(SCHEDULE_KEY, LENGTH_KEY),
                remedy="one entry for this threshold",
            )
