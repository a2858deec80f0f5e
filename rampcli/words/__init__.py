"""Translates other systems' words and files into our settings, and our plan into their words."""

import re
from collections.abc import Mapping
from typing import Any

from rampcli.batch.ramp import RAMP_KEY
from rampcli.words import hydra, maxtext, maxtext_mesh, nemo, rl
from rampcli.words.formats import FileFormat
from rampcli.words.maxtext import RAMP_SETTINGS as RAMP_SETTINGS
from rampcli.words.maxtext import bound_by as bound_by
from rampcli.words.refused import MEANT, known_elsewhere
from rampcli.words.translation import CombinedWord, Source, System, Translation

SYSTEMS: dict[str, System] = {
    **nemo.SYSTEMS,
    "MaxText": maxtext.MAXTEXT,
    "Hydra": hydra.HYDRA,
    f"`{rl.RL_COMMAND}`": rl.RL,
}
"""Other systems by name. A new one is a module with its words, and an entry here."""
_ALL = tuple(SYSTEMS.values())
SPELLINGS = {word: key for one in _ALL for word, key in one.spellings.items()}
"""Our key for each word that means exactly one of our keys."""
COMBINED: dict[str, CombinedWord] = {k: word for one in _ALL for k, word in one.combined.items()}
"""Each word whose meaning depends on other settings."""
KEYS = SPELLINGS | {word: key for one in _ALL for word, key in one.decides.items()}
"""Our key for each word that decides one, alone or with others."""
DECIDED = maxtext_mesh.DECIDED | {RAMP_KEY: RAMP_SETTINGS}
"""The words of `COMBINED` that decide a key of ours and no other size."""
FOREIGN = frozenset({*SPELLINGS, *COMBINED})
"""Every word that is accepted."""
LAYER_CHECKS = tuple(check for one in _ALL for check in one.checks)
"""Functions that refuse words in layers. They are called before words are translated."""
SETTLING = tuple(settle for one in _ALL for settle in one.settles)
"""Functions that give our keys what words in layers mean, with notes. They are called in turn."""
DIALECTS = {name: one.write for name, one in SYSTEMS.items() if one.write is not None}
FORMATS = tuple(one.files for one in _ALL if one.files is not None)
DERIVED = {word: about for one in _ALL for word, about in one.derived.items()}
"""Meaning of each number that a system derives and nobody sets, and the keys to set instead."""
REFUSED = {
    name: ("is derived and cannot be set", tuple(f"{key}=VALUE" for key in keys))
    for name, (_, keys) in DERIVED.items()
} | {word: about for one in _ALL for word, about in one.refused.items()}
WRAPPER = nemo.LAUNCHER_GROUP
"""A section that a launcher puts around all settings, and the group whose options are its runs."""
NO_EXTENSIONS = nemo.OPTIM_SECTIONS
"""Sections of other systems, such as `optim.sched`, that are not those of an extension."""
_WRAPPED = re.compile(rf"^([+~]*)({WRAPPER}\.)+")


def unwrapped(word: str) -> str:
    """Returns a key or `KEY=VALUE` without the section `WRAPPER`."""
    return _WRAPPED.sub(r"\1", word)


def wrapped(key: str) -> str:
    """Returns a key in the section `WRAPPER`."""
    return f"{WRAPPER}.{key}"


def format_of(leaves: Mapping[str, Any]) -> FileFormat | None:
    """Returns the format of a file of another system, given its values by dotted key, or None."""
    return next((one for one in FORMATS if one.recognises(leaves)), None)


def refusal_of(word: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns why a word is refused and what to do instead, or None if no system has it."""
    of_hydra = hydra.REFUSED if word.startswith("hydra.") else None
    return REFUSED.get(word) or known_elsewhere(word, MEANT) or of_hydra


def translate_plan(source: Source) -> dict[str, Translation]:
    """Returns the batch of a plan in each system's words, ready to paste, by system."""
    return {name: write(source) for name, write in DIALECTS.items()}


def means_alone(word: str, key: str) -> bool:
    """Returns whether a word means one key of ours, if no other word takes part."""
    return SPELLINGS.get(word) == key or (word in COMBINED and COMBINED[word].key == key)


def meaning_of(word: str, about_key: str) -> str:
    """Returns what a spelling means, given the description of its key."""
    found = {name: one for name, one in SYSTEMS.items() if word in one.spellings}
    remark = next((one.remarks[word] for one in found.values() if word in one.remarks), "")
    parts = (f"{' and '.join(found)}: sets `{SPELLINGS[word]}`.", about_key, remark)
    return " ".join(filter(None, parts))
