"""Translates batch settings of other systems into ours, and our plan into their settings.

A new system is a module with its spellings and a `write` function, and entries in `SPELLED_BY` and
`DIALECTS`. Words that mean different keys or values beside other settings are in `COMBINED`, and
a function in `SETTLING` says what they mean.
"""

from collections.abc import Callable
from typing import Any

from rampcli.batch.ramp import RAMP_KEY
from rampcli.words import hydra, maxtext, maxtext_mesh, nemo, rl
from rampcli.words.maxtext import bound_by as bound_by
from rampcli.words.translation import CombinedWord, Source, Translation

SPELLED_BY: dict[str, dict[str, str]] = {
    "NeMo 1": nemo.NEMO_1,
    "NeMo 2": nemo.NEMO_2,
    "Megatron Bridge": nemo.BRIDGE,
    "MaxText": maxtext.SPELLINGS,
    "Hydra": hydra.SPELLINGS,
    f"`{rl.RL_COMMAND}`": rl.SPELLINGS,
}
"""Our key for each word that means exactly one of our keys, by system."""
SPELLINGS: dict[str, str] = {
    word: key for spellings in SPELLED_BY.values() for word, key in spellings.items()
}
COMBINED: dict[str, CombinedWord] = maxtext.WORDS | maxtext_mesh.WORDS
"""Each word whose meaning depends on other settings."""
KEYS = SPELLINGS | maxtext_mesh.KEYS
"""Our key for each word that decides one, alone or with others."""
BATCH_WORDS, RAMP_WORDS = tuple(maxtext.WORDS), (maxtext.ENABLE, *maxtext.RAMP_WORDS)
"""The words of `COMBINED` for a batch, and those of them for a ramp."""
DECIDED = maxtext_mesh.DECIDED | {RAMP_KEY: RAMP_WORDS}
"""The words of `COMBINED` that decide a key of ours and no other size."""
FOREIGN = frozenset({*SPELLINGS, *COMBINED})
"""Every word that is accepted."""
SETTLING: tuple[Callable[[Any], tuple[Any, tuple[str, ...]]], ...] = (
    rl.settle_counts,
    maxtext_mesh.settle_mesh,
    maxtext.settle_batch,
    maxtext.settle_accumulation,
)
"""Functions that give our keys what words in layers mean, with notes. They are called in turn."""
REMARKS = {
    "model.seq_length": "Equal to `dataset.seq_length`.",
    "dataset.sequence_length": "The name of `dataset.seq_length` in versions up to 0.5.",
    "gradient_accumulation_steps": (
        "Replaces a recipe's `model.global_batch_size` by the product of micro batch, data-parallel"
        " ranks and passes."
    ),
    hydra.RUN_DIR: "Hydra has another setting for the folder of a sweep.",
    "rl.prompts_per_step": "The samples of such a run are prompts.",
}
"""Facts about spellings that the descriptions of their keys do not give."""

DIALECTS: dict[str, Callable[[Source], Translation]] = {
    "NeMo 1": nemo.write_nemo_1,
    "NeMo 2": nemo.write_nemo_2,
    "Megatron Bridge": nemo.write_bridge,
    "Megatron-LM": nemo.write_megatron,
    "MaxText": maxtext.write,
}


def translate_plan(source: Source) -> dict[str, Translation]:
    """Returns the batch of a plan in each system's words, ready to paste, by system."""
    return {name: write(source) for name, write in DIALECTS.items()}


def means_alone(word: str, key: str) -> bool:
    """Returns whether a word means one key of ours, if no other word takes part."""
    return SPELLINGS.get(word) == key or (word in COMBINED and COMBINED[word].key == key)


def meaning_of(word: str, about_key: str) -> str:
    """Returns what a spelling means, given the description of its key."""
    systems = " and ".join(name for name, words in SPELLED_BY.items() if word in words)
    parts = (f"{systems}: sets `{SPELLINGS[word]}`.", about_key, REMARKS.get(word, ""))
    return " ".join(filter(None, parts))
