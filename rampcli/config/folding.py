"""Folds spellings of other systems, and keys that replace each other, into the canonical keys."""

from math import prod
from typing import Any

from rampcli.batch.dialects.maxtext import ENABLE, SUGGESTED, WORDS, translate
from rampcli.batch.dialects.spellings import Given, fold_spellings
from rampcli.batch.micro_batch import LARGEST, STAGE_MICRO_KEY
from rampcli.batch.per_device import PER_DEVICE
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Entry, Layer, Precedence, Stack
from rampcli.config.settings import FOREIGN, shown
from rampcli.errors import UsageError

WARMUP_KEYS = ("optim.warmup_samples", "optim.warmup_steps")
ONE_OF = (LENGTH_KEYS, WARMUP_KEYS, (RAMP_KEY, SCHEDULE_KEY))
"""Keys that say the same thing in different ways.

One that is set nearer to the user replaces the others.
"""
PARALLEL_KEYS = tuple(
    f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")
)


def fold(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Returns the stack with spellings folded into the canonical keys, and notes for the user.

    Raises:
        UsageError: spellings that contradict each other, or a batch that is not whole.
    """
    folding = _Folding(stack)
    given = {
        key: Given(value=value, layer=folding.precedence[key])
        for key, value in folding.values.items()
    }
    for key, word in fold_spellings(given).items():
        folding.decide(key, word, folding.values[word])
    try:
        notes = _fold_maxtext(folding)
    except UsageError as error:
        folding.folded().name_sources(error)
        raise
    for keys in ONE_OF:
        chosen = [key for key in keys if folding.values[key] is not None]
        nearest = max(chosen, key=lambda key: folding.precedence[key], default=None)
        for key in chosen:
            if nearest is not None and folding.precedence[key] < folding.precedence[nearest]:
                folding.decide(key, nearest, None)
    if (
        folding.values[SCHEDULE_KEY] is not None
        and folding.precedence[GLOBAL_KEY] < folding.precedence[SCHEDULE_KEY]
    ):  # the last size of the schedule is the batch
        folding.decide(GLOBAL_KEY, SCHEDULE_KEY, None)
    return folding.folded(clear_spellings=True), notes


class _Folding:
    """The values of a stack while spellings are folded into them, and what was decided so far."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.values = stack.values()
        self.precedence = {key: stack.precedence(key) for key in self.values}
        self.decided: dict[str, Entry] = {}

    def decide(self, key: str, by: str, value: Any) -> None:
        """Sets a key because `by` is set, with the precedence of `by`."""
        entry = self.decided.get(by)
        place = (
            entry.place
            if entry
            else f"{by}={shown(self.values[by])} ({self.stack.entry(by).place})"
        )
        self.decided[key] = Entry(value, place, by)
        self.values[key], self.precedence[key] = value, self.precedence[by]

    def folded(self, *, clear_spellings: bool = False) -> Stack:
        """Returns the stack with what was decided on top."""
        entries = dict(self.decided)
        if clear_spellings:
            used = [word for word in FOREIGN if self.values[word] is not None]
            entries |= {word: Entry(None, "folded", by=word) for word in used}
        layers = [
            Layer(
                "folded",
                precedence,
                {
                    key: entry
                    for key, entry in entries.items()
                    if self.precedence[key] is precedence
                },
            )
            for precedence in Precedence
        ]
        return self.stack.above(*(layer for layer in layers if layer.entries))


def _fold_maxtext(folding: _Folding) -> tuple[str, ...]:
    values, precedence = folding.values, folding.precedence
    words = {word: values[word] for word in WORDS if values[word] is not None}
    if not words:
        return ()
    sources = [word for word in words if word != PER_DEVICE] or [PER_DEVICE]
    source = max(sources, key=lambda word: (precedence[word], word == ENABLE))
    meant = translate(
        words,
        num_devices=values["trainer.num_nodes"] * values["trainer.devices"],
        model_parallel_size=prod(max(1, values[key]) for key in PARALLEL_KEYS),
        settings=values,
        one_micro_batch=_is_set_as_near(folding, STAGE_MICRO_KEY, source, LARGEST),
    )
    notes = []
    for key, value in meant.items():
        counts_batch = PER_DEVICE in words and (key == GLOBAL_KEY or not words.get(ENABLE))
        word = PER_DEVICE if counts_batch else source
        if not _is_set_as_near(folding, key, word, value):
            if key == GLOBAL_KEY and values[key] not in (None, value):
                place = folding.stack.entry(key).place
                notes.append(
                    f"{GLOBAL_KEY}={shown(values[key])} ({place}) gives way"
                    f" to {PER_DEVICE}={shown(words[PER_DEVICE])}: {value} samples"
                )
            folding.decide(key, word, value)
        elif key not in SUGGESTED and not (key == GLOBAL_KEY and ENABLE not in words):
            raise UsageError(
                f"{word}={shown(words[word])} sets {key}={shown(value)}, but {shown(values[key])}"
                " is given",
                keys=(word, key),
                remedy="one of them",
            )
    return tuple(notes)


def _is_set_as_near(folding: _Folding, key: str, word: str, value: Any) -> bool:
    """Returns whether a key is set to another value at least as near to the user as the word."""
    if key == ACCUMULATE_KEY:
        # `translate` refuses a value above 1, and 1 does not fit the new micro batch.
        return False
    near = (
        folding.precedence[key] >= folding.precedence[word]
        and folding.precedence[key] > Precedence.SCHEMA
    )
    return near and folding.values[key] not in (None, value)
