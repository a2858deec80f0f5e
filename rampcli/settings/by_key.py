"""The settings by dotted key, and configurations as dotted keys.

Imports neither hydra nor omegaconf.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from operator import ge, gt, le, lt
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rampcli.errors import Assignments, example_of, set_to
from rampcli.plugins.extensions import ENTRY_POINTS, Extension, find, section_of
from rampcli.settings.attributes import WORDS_FIELD
from rampcli.settings.facts import BATCH, LEARNING, Facts, Impact, any_phase, whole_run
from rampcli.settings.fields import Extensible, Keyed
from rampcli.settings.phase_keys import PHASES, UNTIL, checked_name, key_inside
from rampcli.words import COMBINED, SPELLINGS, meaning_of
from rampcli.words.refused import VALUES_ELSEWHERE

_EXTENSIBLE = frozenset(map(section_of, ENTRY_POINTS))
_TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list[int]: "a list of integers",
    list[float]: "a list of numbers",
    list[str]: "a list",
    dict[str, str]: "a mapping of names to paths",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a setting, or a word of another system, accepts.

    `extensible` settings also accept names of extensions. `takes_number` marks choices beside which
    a number is accepted.
    """

    key: str
    type: Any
    optional: bool
    default: Any
    facts: Facts
    doc: str = ""
    former: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    unit: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    extensible: bool = False
    takes_number: bool = False
    example_value: Any = None

    @property
    def choices(self) -> list[str]:
        """The values of a choice or a switch, as they are typed; empty for other types."""
        if self.type is bool:
            return ["true", "false"]
        return list(get_args(self.type)) if get_origin(self.type) is Literal else []

    def has_known_type(self) -> bool:
        """Returns whether values of the type can be typed on a command line."""
        return self.type in _TYPE_NAMES or get_origin(self.type) is Literal

    def type_name(self) -> str:
        """Returns `an integer`, `one of nemo, best, fixed`, ..."""
        number = ", or a number" if self.takes_number else ""
        return _TYPE_NAMES.get(self.type) or f"one of {', '.join(self.choices)}{number}"

    def example(self) -> Assignments:
        """Returns a value that is accepted, as a remedy."""
        if self.example_value is None:
            return example_of(self.key, self.default)
        return set_to(self.key, self.example_value)

    def example_like(self, typed: str) -> Assignments:
        """Returns what was typed as the setting takes it: the nearest choice, or a list.

        Returns `example` if the setting takes neither.
        """
        choice = VALUES_ELSEWHERE.get(typed, typed.lower())
        if near := difflib.get_close_matches(choice, self.choices, n=1, cutoff=0.5):
            return set_to(self.key, near[0])
        words = re.split(r"[\s,;]+", typed.strip(" \t()[]'\""))
        is_list = get_origin(self.type) is list and len(words) > 1
        numbers = is_list and all(re.fullmatch(r"\d[\d_]*[KMBT]?", word) for word in words)
        return set_to(self.key, f"[{','.join(words)}]") if numbers else self.example()

    def is_in_range(self, number: float) -> bool:
        """Returns whether the range contains a number."""
        limits = (self.at_least, ge), (self.above, gt), (self.at_most, le), (self.below, lt)
        return all(limit is None or compare(number, limit) for limit, compare in limits)

    def range_name(self) -> str:
        """Returns `from 1`, `above 0 up to 1`, ...; empty if the range is unlimited."""
        parts = [
            f"{word} {bound:g}"
            for word, bound in (("from", self.at_least), ("above", self.above))
            if bound is not None
        ]
        if self.at_most is not None:
            parts.append("up to 2^62" if self.at_most == 2**62 else f"up to {self.at_most:,}")
        if self.below is not None:
            parts.append(f"below {self.below:g}")
        return " ".join(parts)


END_OF_PHASE = Setting(
    key=UNTIL,
    type=str,
    optional=True,
    default=None,
    facts=any_phase(LEARNING),
    doc="Where the phase ends, counted from the start of the run: `7.5T` tokens, `samples:2B` or"
    " `steps:10000`. `null`: where the run ends.",
    unit="tokens, samples or steps",
    example_value="7.5T",
)
"""`phases.NAME.until`."""


def _schema() -> Any:
    """Returns the class of the whole configuration, whose sections have checks that ask here."""
    return resolve_name("rampcli.settings.config:Config")


@cache
def settings() -> dict[str, Setting]:
    """Returns every setting by dotted key, in the order of the schema."""
    return {setting.key: setting for setting in settings_in(_schema(), "")}


@cache
def foreign_words() -> dict[str, Setting]:
    """Returns what each word of another system accepts; a spelling accepts what its key does."""
    spellings = {
        word: dataclasses.replace(
            settings()[key], key=word, optional=True, doc=meaning_of(word, settings()[key].doc)
        )
        for word, key in SPELLINGS.items()
    }
    combined = {
        word: Setting(
            key=word,
            type=theirs.type,
            optional=True,
            default=None,
            facts=any_phase(BATCH).replacing(theirs.replaces)
            if theirs.replaces
            else whole_run(BATCH),
            example_value=theirs.example,
            doc=theirs.meaning,
        )
        for word, theirs in COMBINED.items()
    }
    return spellings | combined


def settings_in(schema: type, prefix: str, facts: Facts | None = None) -> Iterator[Setting]:
    """Yields the settings of a dataclass, with this prefix before their keys.

    Args:
        facts: what is true of settings that do not say so themselves: those of extensions.
    """
    for field in dataclasses.fields(schema):
        key = f"{prefix}{_name(field)}"
        if dataclasses.is_dataclass(field.type):
            yield from settings_in(field.type, f"{key}.", facts)  # type: ignore[arg-type]
        elif _holds_extensions(schema, field) or key in (PHASES, WORDS_FIELD):
            continue
        else:
            declared = field.type
            if isinstance(declared, str):  # from __future__ import annotations
                declared = get_type_hints(schema)[field.name]
            if get_origin(declared) is Keyed:
                (declared,) = get_args(declared)
            # A choice with None is a Union, another type with None is a UnionType.
            is_union = get_origin(declared) in (Union, UnionType)
            options = get_args(declared) if is_union else (declared,)
            kinds = [option for option in options if option is not type(None)]
            about = {"facts": facts, **field.metadata}
            named = about.pop("choices", ())
            made = field.default_factory
            yield Setting(
                key=key,
                type=Literal[named] if named else kinds[0],
                optional=len(kinds) < len(options),
                takes_number=bool(named) and float in kinds,
                default=field.default if made is dataclasses.MISSING else made(),
                **about,
            )


def settings_of(extension: Extension) -> list[Setting]:
    """Returns the settings that an extension declares."""
    if extension.settings is None:
        return []
    return list(
        settings_in(
            extension.settings, extension.section, _of_extensions()[section_of(extension.key)]
        )
    )


def find_setting(key: str) -> Setting | None:
    """Returns a setting or a word of another system, or None.

    In a phase, a key accepts what it accepts in the run. Imports the extension that the setting may
    belong to.

    Raises:
        UsageError: the extension's module cannot be imported.
    """
    if (inside := key_inside(key)) != key:
        found = END_OF_PHASE if inside == UNTIL else find_setting(inside)
        return found and dataclasses.replace(found, key=key)
    known = settings().get(key) or foreign_words().get(key)
    if known is not None:
        return known
    extension = extension_of(key)
    if extension is None:
        return None
    return next((one for one in settings_of(extension) if one.key == key), None)


@cache
def _of_extensions() -> dict[str, Facts]:
    """Returns what is true of the settings of extensions, by section with its dot."""
    return {
        f"{field.name}.": field.type.of_extensions
        for field in dataclasses.fields(_schema())
        if isinstance(field.type, type) and issubclass(field.type, Extensible)
    }


def facts_of(key: str) -> Facts:
    """Returns what is true of a setting, of that of an extension, or of a word for one.

    The setting may be that of a phase. No extension is imported.
    """
    key = key_inside(key)
    if key == UNTIL:
        return END_OF_PHASE.facts
    if is_of_extension(key):
        return _of_extensions()[f"{key.partition('.')[0]}."]
    known = settings().get(key) or foreign_words().get(key)
    return Facts(Impact.NOTHING, "") if known is None else known.facts


def changes(key: str, what: Impact) -> bool:
    """Returns whether another value of a setting changes one of some things, see `facts_of`."""
    return bool(facts_of(key).changes & what)


def may_change(key: str) -> bool:
    """Returns whether a phase may set a key, see `facts_of`. No phase has phases."""
    return key_inside(key) == key and facts_of(key).not_in_phases is None


def alternatives() -> list[list[str]]:
    """Returns the settings that say one thing in different ways, see `Facts.one_of`."""
    found: dict[str, list[str]] = {}
    for key, one in settings().items():
        if one.facts.one_of is not None:
            found.setdefault(one.facts.one_of, []).append(key)
    return [*found.values()]


def replaced_by(key: str) -> Mapping[str, Any]:
    """Returns what a phase that sets a key replaces, see `Facts.replaces`."""
    return {} if key in SPELLINGS else facts_of(key).replaces


def changing(what: Impact) -> list[str]:
    """Returns the settings of the schema that change one of some things, in its order."""
    return [key for key, one in settings().items() if one.facts.changes & what]


def extension_of(key: str) -> Extension | None:
    """Returns the extension that a key such as `optim.lion.beta1` names, or None.

    Raises:
        UsageError: the extension's module cannot be imported.
    """
    section, _, rest = key.partition(".")
    name, dot, _ = rest.partition(".")
    choosers = [one for one in ENTRY_POINTS if dot and section_of(one) == f"{section}."]
    return next(filter(None, (find(chooser, name) for chooser in choosers)), None)


def is_of_extension(key: str) -> bool:
    """Returns whether a key has the form of an extension's setting, such as `optim.lion.beta1`.

    The setting may be that of a phase.
    """
    key = key_inside(key)
    section, _, rest = key.partition(".")
    return rest.count(".") == 1 and f"{section}." in _EXTENSIBLE and key not in settings()


def _holds_extensions(schema: type, field: "dataclasses.Field[Any]") -> bool:
    return issubclass(schema, Extensible) and field.name == "extensions"


def _name(field: "dataclasses.Field[Any]") -> str:
    """Returns the name as it is typed.

    A field whose name is a Python keyword ends in `_`: `async_`.
    """
    return field.name.removesuffix("_")


def is_mapping(key: str) -> bool:
    """Returns True if a setting takes a mapping."""
    setting = settings().get(key_inside(key))
    return setting is not None and get_origin(setting.type) is dict


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every leaf of a configuration as (dotted key, value), in the order of the schema."""
    for field in dataclasses.fields(config):
        key, value = f"{prefix}{_name(field)}", getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{key}.")
        elif key == PHASES:
            yield from phase_leaves(value)
        elif key != WORDS_FIELD and not _holds_extensions(type(config), field):
            yield key, value
    if isinstance(config, Extensible):
        yield from flatten(config.extensions, prefix).items()


def phase_leaves(phases: Any) -> Iterator[tuple[str, Any]]:
    """Yields every leaf of phases as (dotted key, value).

    Args:
        phases: a mapping by name, or a list of mappings that have a `name`. Anything else is one
            leaf, so that it is refused.

    Raises:
        UsageError: a phase of a list has no name, or that of an earlier one.
    """
    if isinstance(phases, list | tuple):
        named: dict[str, Any] = {}
        for number, own in enumerate(phases):
            name = own.get("name") if isinstance(own, Mapping) else None
            name = checked_name(name, named, place=f"[{number}]")
            named[name] = {key: value for key, value in own.items() if key != "name"}
        phases = named
    if isinstance(phases, Mapping):
        for name, own in phases.items():
            # A phase without settings has no other leaf.
            yield from flatten({name: {UNTIL: None} if own == {} else own}, f"{PHASES}.").items()
    elif phases is not None:
        yield PHASES, phases


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a nested mapping by dotted key.

    The value of a setting that takes a mapping stays a leaf. An empty mapping stays one, too, so
    that it is noticed.
    """
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not is_mapping(key):
            flat |= flatten(value, f"{key}.")
        else:
            flat[key] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by dotted key as a nested mapping."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, name = key.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return tree
