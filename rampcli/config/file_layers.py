"""Makes a layer of each file that Hydra has composed: which file and line each value comes from.

The values are Hydra's. A file whose value another one has replaced keeps it in its layer, so that
`explain` can name it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rampcli.config.composition import ComposedFile, Composition
from rampcli.config.layers import Entry, Layer, Precedence, merged, placed
from rampcli.config.reading import SEARCH_PATH
from rampcli.config.references import MISSING, Unresolved, above, has_reference
from rampcli.config.written import Written
from rampcli.config.yaml_files import HYDRA
from rampcli.errors import ErrorReport, UsageError, example_of, shown
from rampcli.settings.by_key import find_setting, settings
from rampcli.settings.unknown_keys import unknown_key
from rampcli.words import SPELLINGS
from rampcli.words.hydra import RUN_DIR, SWEEP_DIR, of_sweep


def file_layers(
    composition: Composition,
    written: Written,
    *,
    chosen: Collection[str],
    sweeps: bool,
    leaves_out: Collection[int] = (),
    report: ErrorReport,
) -> list[Layer]:
    """Returns the layer of each file, in the order in which they are merged.

    Args:
        written: the values of files, recipe and words together.
        chosen: the choices of the user. Files that follow from them are nearer to the user.
        leaves_out: numbers of the files whose layers are empty.
    """
    files = composition.files
    owners = owners_of(files)
    effective: list[dict[str, Entry]] = [{} for _ in files]
    for key, value in composition.values.items():
        if value == MISSING or written.is_variable(key) or _is_empty_section(key, value):
            continue
        index, line, leaf = max(owners[one] for one in (key, *above(key)) if one in owners)
        if index in leaves_out:
            continue
        reference = None if leaf == key else files[index].leaves[leaf][1]
        into, name = effective[index], files[index].file.name
        if not has_reference(value):
            into[key] = Entry(value, name, line, reference=reference)
        elif written.values.get(key) == value:  # and no word has replaced it
            for one, each in written.values_of(key).items():
                into[one] = Entry(each, name, line, reference=value)
                if one != key and find_setting(one) is None:
                    error = unknown_key(one)
                    error.set_by = (f"{shown(value)} ({name}:{line})",)
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


def owners_of(
    files: Sequence[ComposedFile], among: Collection[int] | None = None
) -> dict[str, tuple[int, int, str]]:
    """Returns the last file that sets each leaf, by its number, the line, and the leaf.

    Args:
        among: numbers of the files that are looked at; None for all.
    """
    owners: dict[str, tuple[int, int, str]] = {}
    for index, one in enumerate(files):
        leaves = one.leaves if among is None or index in among else {}
        for key, (line, value) in leaves.items():
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
    effective: Mapping[str, Entry],
    written: Written,
    composition: Composition,
    *,
    chosen: Collection[str],
    sweeps: bool,
    report: ErrorReport,
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
            every[key] = Entry(found, file.file.name, line, reference=value)
        elif is_applied or (is_replaced and not is_left_out):
            every[key] = Entry(value, file.file.name, line)
    typeable: dict[str, Entry] = {}
    replaced: dict[str, Entry] = {}
    for key, one in every.items():
        if isinstance(one.value, Unresolved):
            with report.noting(), placed(f"{key} ({file.file.name}:{one.line})"):
                raise one.value.error
        elif not has_reference(one.value):
            typeable[key] = one
        elif find_setting(key) is not None:
            replaced[key] = replace(one, reference=None)
    layer = Layer.of(file.file.name, precedence, typeable, report=report)
    return Layer(layer.name, precedence, {**replaced, **layer.entries})


def _check_spellings(files: Sequence[Layer], report: ErrorReport) -> None:
    """Checks that files that are equally near to the user spell a setting alike, or agree."""
    entries: dict[tuple[Precedence, str], Entry] = {}
    for layer in files:
        for key, entry in layer.entries.items():
            with report.noting():
                near = (layer.precedence, key)
                entries[near] = merged(key, entries.get(near), entry)


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
    is_set = {SPELLINGS.get(key, key) for key, value in values.items() if value != MISSING}
    owners = owners_of(composition.files)
    for name, value in values.items():
        if value != MISSING or written.is_variable(name) or SPELLINGS.get(name, name) in is_set:
            continue
        index, line, _ = owners[name]
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
