"""Makes a layer of each file that Hydra has composed: which file and line each value comes from.

The values are Hydra's. A file whose value another one has replaced keeps it in its layer, so that
`explain` can name it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.config.composition import ComposedFile, Composition
from rampcli.config.layers import Entry, Layer, Precedence, Stack, merged, placed
from rampcli.config.phase_keys import key_inside
from rampcli.config.reading import SEARCH_PATH, drop_launcher_section
from rampcli.config.references import (
    MISSING,
    Unresolved,
    above,
    has_reference,
    is_below,
    resolved,
)
from rampcli.config.settings import find_setting, is_of_extension, settings
from rampcli.config.unknown_keys import unknown_key
from rampcli.config.values import typed
from rampcli.config.yaml_files import HYDRA
from rampcli.errors import Report, UsageError, example_of, shown
from rampcli.words import FOREIGN, SPELLINGS
from rampcli.words.hydra import RUN_DIR, SWEEP_DIR, of_sweep
from rampcli.words.nemo import LAUNCHER_SECTION


@dataclass(frozen=True, slots=True)
class Written:
    """The values of a run as they were written, merged, and what their references come to.

    Attributes:
        values: by dotted key in Hydra's tree, with references.
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
            values: as in the class.
            named: keys that other references name, which the values have replaced.
        """
        if not any(map(has_reference, values.values())):
            return cls(values, named=named)
        found, names = resolved(values)
        return cls(values, found, {*names, *named})

    def name_of(self, key: str) -> str:
        """Returns a word's key in Hydra's tree. The word may leave out NeMo's `training.`."""
        inside = f"{LAUNCHER_SECTION}{key}"
        return inside if inside in self.values else key

    def with_defaults(self, values: Mapping[str, Any]) -> "Written":
        """Returns these values and those of further keys, which references may name."""
        others = {key: value for key, value in values.items() if self.name_of(key) == key}
        return Written.of({**others, **self.values}, self.named)

    def values_of(self, key: str) -> dict[str, Any]:
        """Returns what a reference comes to, by key: several keys if it names a section."""
        return {one: value for one, value in self.found.items() if is_below(one, key)}

    def is_variable(self, key: str) -> bool:
        """Returns whether a key is not a setting, and references name it."""
        if not self.named:
            return False
        name = drop_launcher_section(key)
        is_setting = find_setting(name) is not None or name in FOREIGN or is_of_extension(name)
        return not is_setting and any(
            is_below(key, one) or is_below(one, key) for one in self.named
        )


def with_references_anew(stack: Stack, written: Written) -> Stack:
    """Returns layers whose references have the values that they come to among other values.

    A reference that cannot be resolved there keeps its value.
    """

    def anew(key: str, entry: Entry) -> Entry:
        ((word, typed_word),) = entry.words if len(entry.words) == 1 else ((key, entry),)
        name = written.name_of(word)
        found = written.found.get(name)
        is_same = typed_word.value == entry.value  # and not what a rule makes of it
        if found is None or isinstance(found, Unresolved) or not is_same:
            return entry
        as_written = (written.values.get(one) for one in (name, *above(name)))
        if typed_word.reference is None or typed_word.reference not in as_written:
            return entry
        with suppress(UsageError):
            value = typed(key_inside(key), found)
            own = replace(typed_word, value=value)
            return replace(entry, value=value, words=((word, own),)) if entry.words else own
        return entry

    def layer_anew(layer: Layer) -> Layer:
        return replace(layer, entries={key: anew(key, one) for key, one in layer.entries.items()})

    return stack.changed(layer_anew) if written.found else stack


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a file, its line, and the value as it was written if it has references."""

    value: Any
    line: int
    reference: Any = None


def file_layers(
    composition: Composition,
    written: Written,
    *,
    chosen: Collection[str],
    sweeps: bool,
    leaves_out: Collection[int] = (),
    report: Report,
) -> list[Layer]:
    """Returns the layer of each file, in the order in which they are merged.

    Args:
        composition: what Hydra has composed.
        written: the values of files, recipe and words together.
        chosen: the choices of the user. Files that follow from them are nearer to the user.
        sweeps: whether runs of a sweep are composed.
        leaves_out: numbers of the files whose layers are empty.
        report: receives the errors.
    """
    files = composition.files
    owners = owners_of(files)
    effective: list[dict[str, _Value]] = [{} for _ in files]
    for key, value in composition.values.items():
        if value == MISSING or written.is_variable(key) or _is_empty_section(key, value):
            continue
        index, line, leaf = max(owners[one] for one in (key, *above(key)) if one in owners)
        if index in leaves_out:
            continue
        reference = None if leaf == key else files[index].leaves[leaf][1]
        into = effective[index]
        if not has_reference(value):
            into[key] = _Value(value, line, reference)
        elif written.values.get(key) == value:  # and no word has replaced it
            for one, each in written.values_of(key).items():
                into[one] = _Value(each, line, value)
                if one != key and find_setting(drop_launcher_section(one)) is None:
                    error = unknown_key(drop_launcher_section(one))
                    error.set_by = (f"{shown(value)} ({files[index].file.name}:{line})",)
                    report.errors.append(error)
                    del into[one]
    layers = [
        Layer(one.file.name, Precedence.CONF, {})
        if index in leaves_out
        else _layer_of(
            one, effective[index], written, composition, chosen=chosen, sweeps=sweeps, report=report
        )
        for index, one in enumerate(files)
    ]
    _check_spellings(layers, report)
    return layers


def owners_of(files: Sequence[ComposedFile]) -> dict[str, tuple[int, int, str]]:
    """Returns the last file that sets each leaf, by its number, the line, and the leaf."""
    owners: dict[str, tuple[int, int, str]] = {}
    for index, one in enumerate(files):
        for key, (line, value) in one.leaves.items():
            if value != MISSING or key not in owners:
                owners[key] = (index, line, key)
    return owners


def _is_empty_section(key: str, value: Any) -> bool:
    """Returns whether a value is an empty section of the schema, or of a file without settings."""
    if value != {}:
        return False
    return find_setting(key) is None or any(one.startswith(f"{key}.") for one in settings())


def _layer_of(
    file: ComposedFile,
    effective: Mapping[str, _Value],
    written: Written,
    composition: Composition,
    *,
    chosen: Collection[str],
    sweeps: bool,
    report: Report,
) -> Layer:
    """Returns the layer of a file: its effective values, and those that were replaced."""
    precedence = Precedence.CONF if file.is_bundled else Precedence.RECIPE
    if file.choice in chosen:
        precedence = Precedence.CHOSEN
    every = dict(effective)
    leaves = of_sweep(file.leaves) if sweeps else file.leaves
    for key, (line, value) in leaves.items():
        is_applied = key == RUN_DIR
        is_replaced = key in composition.values and key not in effective and value != MISSING
        is_left_out = written.is_variable(key) or _is_empty_section(key, value)
        if is_applied and has_reference(value):
            found = written.found.get(key, value)
            every[key] = _Value(found, line, value)
        elif is_applied or (is_replaced and not is_left_out):
            every[key] = _Value(value, line)
    typeable: dict[str, _Value] = {}
    replaced: dict[str, Entry] = {}
    for key, one in every.items():
        name = drop_launcher_section(key)
        if isinstance(one.value, Unresolved):
            with report.noting(), placed(f"{name} ({file.file.name}:{one.line})"):
                raise one.value.error
        elif has_reference(one.value):
            if find_setting(name) is not None:
                replaced[name] = Entry(one.value, file.file.name, one.line)
        else:
            typeable[name] = one
    layer = Layer.of(
        file.file.name,
        precedence,
        {key: one.value for key, one in typeable.items()},
        lines={key: one.line for key, one in typeable.items()},
        references={
            key: one.reference for key, one in typeable.items() if one.reference is not None
        },
        report=report,
    )
    return Layer(layer.name, precedence, {**replaced, **layer.entries})


def _check_spellings(files: Sequence[Layer], report: Report) -> None:
    """Checks that files that are equally near to the user spell a setting alike, or agree."""
    entries: dict[tuple[Precedence, str], Entry] = {}
    for layer in files:
        for key, entry in layer.entries.items():
            with report.noting():
                near = (layer.precedence, key)
                entries[near] = merged(key, entries.get(near), entry)


def hydra_values(composition: Composition, *, sweeps: bool) -> dict[str, Any]:
    """Returns what the files say of the folder of the run, or of a sweep, as it was written."""
    values: dict[str, Any] = {}
    for one in composition.files:
        leaves = of_sweep(one.leaves) if sweeps else one.leaves
        values |= {key: value for key, (_, value) in leaves.items() if key == RUN_DIR}
    return values


def notes_on_hydra(
    composition: Composition, primary: str | None, leaves_out: Collection[int]
) -> Iterator[str]:
    """Yields a note on each setting of Hydra itself in a file that has no effect here."""
    files = (one for index, one in enumerate(composition.files) if index not in leaves_out)
    for one in files:
        for key, (line, value) in one.leaves.items():
            is_applied = key in (RUN_DIR, SWEEP_DIR) or (
                key == SEARCH_PATH and one.file.name == f"{primary}.yaml"
            )
            if key.startswith(f"{HYDRA}.") and not is_applied:
                yield f"{key}={shown(value)} ({one.file.name}:{line}) has no effect here"


def missing(
    composition: Composition, written: Written, leaves_out: Collection[int]
) -> Iterator[UsageError]:
    """Yields an error for each setting that a file leaves to others (`???`) and that nobody sets.

    Another spelling of the setting sets it, too.
    """
    values = written.values
    own = {drop_launcher_section(key) for key, value in values.items() if value != MISSING}
    is_set = {SPELLINGS.get(key, key) for key in own}
    owners = owners_of(composition.files)
    for key, value in values.items():
        name = drop_launcher_section(key)
        if value != MISSING or written.is_variable(key) or SPELLINGS.get(name, name) in is_set:
            continue
        index, line, _ = owners[key]
        if index in leaves_out:
            continue
        place = f"{name} ({composition.files[index].file.name}:{line})"
        setting = find_setting(name)
        if setting is None:
            error = unknown_key(name)
        else:
            error = UsageError(
                f"{name} must be set: it is {MISSING}",
                keys=(name,),
                remedy=example_of(name, setting.example().values[name][0])
                if setting.default is not None or setting.example_value is not None
                else f"{name}=VALUE",
            )
        error.set_by = (place,)
        yield error
