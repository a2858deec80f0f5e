"""Other systems' words, and settings that replace each other, folded into the canonical keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampcli.batch.dialects.maxtext import ENABLE, SUGGESTED, WORDS, translate
from rampcli.batch.dialects.spellings import Given, fold_spellings
from rampcli.batch.per_device import PER_DEVICE
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.origin import Layer, Origin
from rampcli.config.settings import FOREIGN, shown
from rampcli.errors import UsageError

WARMUP_KEYS = ("optim.warmup_samples", "optim.warmup_steps")
ONE_OF = (LENGTH_KEYS, WARMUP_KEYS, (RAMP_KEY, SCHEDULE_KEY))
"""Keys that say the same in different ways: who chooses another than the recipe replaces it."""
PARALLEL_KEYS = tuple(
    f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "context")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Canonical:
    """The leaves of a configuration in canonical keys.

    Attributes:
        values: by dotted key; other systems' words are None.
        decided: by canonical key, the other key that decided it, and the value.
        notes: what a user may not expect.
    """

    values: dict[str, Any]
    decided: dict[str, tuple[str, Any]]
    notes: tuple[str, ...]


def canonicalize(given: Mapping[str, Any], origin: Origin) -> Canonical:
    """Fold other systems' words into the canonical keys, nearest layer first.

    Raises:
        UsageError: words that contradict each other, or whose batch is not whole.
    """
    layers: dict[str, int] = {key: origin.layer(key, value) for key, value in given.items()}
    values = dict(given)
    decided: dict[str, tuple[str, Any]] = {}

    def decide(key: str, by: str, value: Any) -> None:
        values[key], layers[key], decided[key] = value, layers[by], (by, value)

    for key, word in fold_spellings(
        {key: Given(value=value, layer=layers[key]) for key, value in given.items()}
    ).items():
        decide(key, word, given[word])
    try:
        notes = _fold_maxtext(values, layers, decide, origin)
    except UsageError as error:
        origin.settled(given, decided).name_sources(error)
        raise
    for keys in ONE_OF:
        chosen = [key for key in keys if values[key] is not None]
        nearest = max(chosen, key=lambda key: layers[key], default=None)
        for key in chosen:
            if nearest is not None and layers[key] < layers[nearest]:
                decide(key, nearest, None)
    if (
        values[SCHEDULE_KEY] is not None and layers[GLOBAL_KEY] < layers[SCHEDULE_KEY]
    ):  # its last size is the batch
        decide(GLOBAL_KEY, SCHEDULE_KEY, None)
    return Canonical(values=values | dict.fromkeys(FOREIGN), decided=decided, notes=notes)


def _fold_maxtext(
    values: dict[str, Any], layers: dict[str, int], decide: Any, origin: Origin
) -> tuple[str, ...]:
    words = {word: values[word] for word in WORDS if values[word] is not None}
    if not words:
        return ()
    speakers = [word for word in words if word != PER_DEVICE] or [PER_DEVICE]
    speaker = max(speakers, key=lambda word: (layers[word], word == ENABLE))
    devices = values["trainer.num_nodes"] * values["trainer.devices"]
    model_ranks = 1
    for key in PARALLEL_KEYS:
        model_ranks *= max(1, values[key])
    notes = []
    for key, value in translate(
        words, num_devices=devices, model_parallel_size=model_ranks, settings=values
    ).items():
        word = (
            PER_DEVICE
            if PER_DEVICE in words and (key == GLOBAL_KEY or not words.get(ENABLE))
            else speaker
        )
        outright = (
            layers[key] >= layers[word]
            and layers[key] > Layer.SCHEMA
            and values[key] not in (None, value)
        )
        outright = (
            outright and key != ACCUMULATE_KEY
        )  # that it is 1 was checked, and the micro batch is another now
        if not outright:
            if key == GLOBAL_KEY and values[key] not in (None, value):
                place = origin.place(key, values[key])
                notes.append(
                    f"{GLOBAL_KEY}={shown(values[key])} ({place}) gives way to {PER_DEVICE}={shown(words[PER_DEVICE])}: {value} samples"
                )
            decide(key, word, value)
        elif key not in SUGGESTED and not (key == GLOBAL_KEY and ENABLE not in words):
            raise UsageError(
                f"{word}={shown(words[word])} makes {key}={shown(value)}, and {shown(values[key])} is given",
                keys=(word, key),
                remedy="one of them",
            )
    return tuple(notes)
