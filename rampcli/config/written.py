"""The values of a run as files, recipes and words write them, and what their references come to.

References are resolved among all values. Layers (`rampcli.config.layers`) get what they come to.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.config.composition import Composition
from rampcli.config.layers import Entry, Layer, Stack
from rampcli.config.references import Unresolved, above, has_reference, is_below, named_in, resolved
from rampcli.config.values import typed
from rampcli.errors import UsageError, shown
from rampcli.settings.by_key import find_setting, is_of_extension
from rampcli.settings.phase_keys import key_inside
from rampcli.words import FOREIGN, SPELLINGS, format_of
from rampcli.words.hydra import RUN_DIR, of_sweep


@dataclass(frozen=True, slots=True)
class Written:
    """The values of a run as they were written, merged, and what their references come to.

    Attributes:
        values: by dotted key, with references.
        found: the value of each reference, by key; an `Unresolved` if it has none.
        named: the keys that references name.
    """

    values: Mapping[str, Any]
    found: Mapping[str, Any] = field(default_factory=dict)
    named: Collection[str] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any], named: Collection[str] = ()) -> "Written":
        """Resolves the references in some values.

        Args:
            named: keys that other references name, which the values have replaced.
        """
        if not any(map(has_reference, values.values())):
            return cls(values, named=named)
        found, names = resolved(values)
        return cls(values, found, {*names, *named})

    def with_defaults(self, values: Mapping[str, Any]) -> "Written":
        """Returns these values and those of further keys, which references may name."""
        others = {key: value for key, value in values.items() if key not in self.values}
        return Written.of({**others, **self.values}, self.named)

    def values_of(self, key: str) -> dict[str, Any]:
        """Returns what a reference comes to, by key: several keys if it names a section."""
        return {one: value for one, value in self.found.items() if is_below(one, key)}

    def is_variable(self, key: str) -> bool:
        """Returns whether a key is not a setting, and references name it."""
        if not self.named:
            return False
        is_setting = find_setting(key) is not None or key in FOREIGN or is_of_extension(key)
        return not is_setting and any(
            is_below(key, one) or is_below(one, key) for one in self.named
        )


def with_references_anew(stack: Stack, written: Written) -> Stack:
    """Returns layers whose references have the values that they come to among other values.

    A reference that cannot be resolved there keeps its value.
    """

    def anew(key: str, entry: Entry) -> Entry:
        ((word, typed_word),) = entry.words if len(entry.words) == 1 else ((key, entry),)
        found = written.found.get(word)
        is_same = typed_word.value == entry.value  # and not what a rule makes of it
        if found is None or isinstance(found, Unresolved) or not is_same:
            return entry
        as_written = (written.values.get(one) for one in (word, *above(word)))
        if typed_word.reference is None or typed_word.reference not in as_written:
            return entry
        with suppress(UsageError):
            value = typed(key_inside(key), found)
            own = replace(typed_word, value=value)
            return replace(entry, value=value, words=((word, own),)) if entry.words else own
        return entry

    return stack.changed(anew) if written.found else stack


def values_of_files(stack: Stack) -> Mapping[str, Any]:
    """Returns the values of the files, as they were written; none if none were composed."""
    composition: Composition | None = stack.composition
    return {} if composition is None else composition.values


def named_in_files(stack: Stack) -> set[str]:
    """Returns the keys that references in the user's files name, also replaced references."""
    composition: Composition | None = stack.composition
    files = () if composition is None else composition.files
    leaves = (one.leaves for one in files if not one.is_bundled)
    return {
        name
        for each in leaves
        for name in named_in({key: value for key, (_, value) in each.items()})
    }


def written_values(stack: Stack, recipe: Layer, words: Mapping[str, Any]) -> Written:
    """Returns the values of files, recipe and words, merged, with their references resolved."""
    values = dict(values_of_files(stack))
    composition: Composition | None = stack.composition
    for file in () if composition is None else composition.files:
        leaves = of_sweep(file.leaves) if stack.primary.sweeps else file.leaves
        values |= {key: value for key, (_, value) in leaves.items() if key == RUN_DIR}
    for layer in (recipe, *stack.overrides):
        for key, one in layer.entries.items():
            values[key] = one.value if one.reference is None else one.reference
    in_no_layer = {
        key: one.value for key, one in stack.words.items() if find_setting(key.lstrip("~")) is None
    }
    for key, value in {**in_no_layer, **words}.items():
        name, value = _whole(key.lstrip("~"), value, values)
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            value = {**values[name], **value}  # as Hydra merges them
        if key.startswith("~"):
            values.pop(name, None)
        else:
            values[name] = value
            if name in SPELLINGS:  # so that references to our key find it
                values[SPELLINGS[name]] = value
    values |= _in_their_names(stack, words, values)
    return Written.of(values, named_in_files(stack))


def _in_their_names(
    stack: Stack, words: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values of our words under a system's keys for the same settings, for references.

    Empty if no file is another system's.
    """
    if (form := format_of(values)) is None:
        return {}
    theirs = form.names(values)
    ours = {
        key: one.value
        for layer in stack.overrides
        for key, one in layer.entries.items()
        if theirs.get(key) not in dict(one.words)
    }
    ours |= {SPELLINGS.get(key, key): value for key, value in words.items()}
    return {
        theirs[key]: value
        for key, value in ours.items()
        if key in theirs and theirs[key] in values and theirs[key] not in words
    }


def _whole(key: str, value: Any, values: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the key and the value that a word sets: the whole list if its key is an item of one.

    Raises:
        UsageError: the key is below another value.
    """
    parent, _, index = key.rpartition(".")
    found = values.get(parent)
    if isinstance(found, list) and index.isdecimal() and int(index) < len(found):
        return parent, [*found[: int(index)], value, *found[int(index) + 1 :]]
    for one in above(key):
        if one in values and not has_reference(values[one]) and values[one] not in (None, {}):
            raise UsageError(
                f"{key} is below {one}, which is {shown(values[one])}",
                keys=(key,),
                remedy=f"{one}=VALUE",
            )
    return key, value
