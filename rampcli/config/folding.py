"""Folds spellings of other systems, and keys that replace each other, into the canonical keys."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rampcli.batch.micro_batch import LARGEST, STAGE_MICRO_KEY
from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.per_device import PER_DEVICE
from rampcli.batch.plan import (
    ACCUMULATE_KEY,
    DEVICES_KEY,
    GLOBAL_KEY,
    MICRO_KEY,
    NUM_NODES_KEY,
    ParallelSizes,
)
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Entry, Layer, Precedence, Stack
from rampcli.config.settings import FOREIGN
from rampcli.errors import UsageError, shown
from rampcli.words import maxtext_mesh
from rampcli.words.maxtext import ACCUMULATION, ENABLE, SUGGESTED, WORDS, translate
from rampcli.words.spellings import Given, fold_spellings

WARMUP_KEYS = ("optim.warmup_samples", "optim.warmup_steps")
ONE_OF = (LENGTH_KEYS, WARMUP_KEYS, (RAMP_KEY, SCHEDULE_KEY))
"""Keys that say the same thing in different ways.

One that is set nearer to the user replaces the others.
"""


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
    _check_words_of_pretraining(folding)
    for key, word in fold_spellings(given).items():
        _check_rl_word(word, folding)
        folding.decide(key, word, folding.values[word])
    try:
        _fold_mesh(folding)
        notes = _fold_maxtext(folding) + _fold_accumulation(folding)
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


def _check_words_of_pretraining(folding: "_Folding") -> None:
    """Checks that MaxText's words for batches of samples are used in pretraining only."""
    given = [word for word in (*WORDS, ACCUMULATION) if folding.values[word] is not None]
    if given and folding.values[GENERATIONS_KEY] is not None:
        raise UsageError(
            f"{given[0]}={shown(folding.values[given[0]])} is a word of pretraining, and"
            " reinforcement learning counts prompts and pairs",
            keys=given,
            remedy=f"{PROMPTS_KEY}, {PAIRS_KEY} or {RAMP_KEY} instead",
        )


def _check_rl_word(word: str, folding: "_Folding") -> None:
    """Checks that prompts are counted in reinforcement learning only."""
    if word == PROMPTS_KEY and folding.values[GENERATIONS_KEY] is None:
        raise UsageError(
            f"{word}={shown(folding.values[word])} does not apply: {GENERATIONS_KEY} is null, so"
            " nothing is generated",
            keys=(word,),
            remedy=[GLOBAL_KEY, "rampcli rl"],
        )


class _Folding:
    """The values of a stack while spellings are folded into them, and what was decided so far."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.values = stack.values()
        self.precedence = {key: stack.precedence(key) for key in self.values}
        self.decided: dict[str, Entry] = {}

    def decide(self, key: str, by: str, value: Any, *, words: Iterable[str] = ()) -> None:
        """Sets a key because `by` is set, with the precedence of `by`.

        `words` are all words that decide the value, if there are several.
        """
        entry = self.decided.get(by)
        place = (
            entry.place
            if entry
            else ", ".join(
                f"{word}={shown(self.values[word])} ({self.stack.entry(word).place})"
                for word in words or [by]
            )
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


def _num_devices(values: Mapping[str, Any]) -> int:
    devices: int = values[NUM_NODES_KEY] * values[DEVICES_KEY]
    return devices


def _parallel_sizes(values: Mapping[str, Any]) -> ParallelSizes:
    sizes = {axis: max(1, values[key]) for axis, key in maxtext_mesh.MODEL_AXES.items()}
    return ParallelSizes(**sizes)


def _fold_mesh(folding: _Folding) -> None:
    values, precedence = folding.values, folding.precedence
    words = {word: values[word] for word in maxtext_mesh.AXES if values[word] is not None}
    meant = maxtext_mesh.translate(
        words, num_devices=_num_devices(values), parallel=_parallel_sizes(values)
    )
    for key, size in meant.items():
        used = [word for word in words if maxtext_mesh.KEYS[word] == key]
        nearest = max(used, key=lambda word: (precedence[word], words[word]))
        if precedence[key] is precedence[nearest] and values[key] not in (None, size):
            raise _contradiction(key, size, used, values)
        if precedence[key] <= precedence[nearest]:
            folding.decide(key, nearest, size, words=used)


def _contradiction(
    key: str, value: Any, words: Sequence[str], values: Mapping[str, Any]
) -> UsageError:
    shown_words = " x ".join(f"{word}={shown(values[word])}" for word in words)
    return UsageError(
        f"{shown_words} sets {key}={shown(value)}, but {shown(values[key])} is given",
        keys=(*words, key),
        remedy="one of them",
    )


def _fold_maxtext(folding: _Folding) -> tuple[str, ...]:
    values, precedence = folding.values, folding.precedence
    words = {word: values[word] for word in WORDS if values[word] is not None}
    if not words:
        return ()
    sources = [word for word in words if word != PER_DEVICE] or [PER_DEVICE]
    source = max(sources, key=lambda word: (precedence[word], word == ENABLE))
    meant = translate(
        words,
        num_devices=_num_devices(values),
        model_parallel_size=_parallel_sizes(values).model_parallel_size,
        settings=values,
        one_micro_batch=_is_set_as_near(folding, STAGE_MICRO_KEY, source, LARGEST),
    )
    notes = []
    for key, value in meant.items():
        counts_batch = PER_DEVICE in words and (key == GLOBAL_KEY or not words.get(ENABLE))
        word = PER_DEVICE if counts_batch else source
        if not _is_set_as_near(folding, key, word, value):
            if key == GLOBAL_KEY and values[key] not in (None, value):
                notes.append(_note_batch(folding, word, value))
            folding.decide(key, word, value)
        elif key not in SUGGESTED and not (key == GLOBAL_KEY and ENABLE not in words):
            raise _contradiction(key, value, [word], values)
    return tuple(notes)


def _fold_accumulation(folding: _Folding) -> tuple[str, ...]:
    """Replaces a batch that is set less near to the user than MaxText's word for accumulation.

    As in MaxText, the batch then follows from the micro batch, the ranks and the accumulation.
    """
    values, precedence = folding.values, folding.precedence
    sizes = (values[GLOBAL_KEY], values[MICRO_KEY], values[ACCUMULATION])
    ranks, rest = divmod(_num_devices(values), _parallel_sizes(values).model_parallel_size)
    if (
        None in sizes
        or precedence[ACCUMULATE_KEY] is not precedence[ACCUMULATION]
        or precedence[GLOBAL_KEY] >= precedence[ACCUMULATION]
        or any(values[key] for key in (PER_DEVICE, ENABLE, SCHEDULE_KEY))
        or rest
    ):
        return ()
    batch, micro, accumulate = sizes
    meant = micro * ranks * accumulate
    if meant < 1 or meant == batch:  # a size below one is refused as it was typed
        return ()
    note = _note_batch(folding, ACCUMULATION, meant)
    folding.decide(GLOBAL_KEY, ACCUMULATION, meant)
    return (note,)


def _note_batch(folding: _Folding, word: str, samples: int) -> str:
    """Returns the note that a word replaces the batch of a recipe or file."""
    values = folding.values
    entry = folding.decided.get(GLOBAL_KEY) or folding.stack.entry(GLOBAL_KEY)
    return (
        f"{GLOBAL_KEY}={shown(values[GLOBAL_KEY])} ({entry.place}) gives way"
        f" to {word}={shown(values[word])}: {samples} samples"
    )


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
