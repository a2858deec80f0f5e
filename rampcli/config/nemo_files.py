"""Turns composed files of NeMo into a layer of our settings (`rampcli.words.nemo_yaml`)."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.bundled import bundled
from rampcli.config.composition import Composition
from rampcli.config.file_layers import Written, owners_of
from rampcli.config.layers import Entry, Layer, Precedence
from rampcli.config.reading import drop_launcher_section
from rampcli.config.references import MISSING, Unresolved, has_reference
from rampcli.config.settings import find_setting, settings
from rampcli.config.values import typed
from rampcli.config.yaml_files import read_file
from rampcli.errors import Report, UsageError, printable, shown
from rampcli.words import nemo_yaml
from rampcli.words.nemo import LAUNCHER_SECTION
from rampcli.words.nemo_keys import CHOICES, NEUTRAL, SAME
from rampcli.words.nemo_yaml import Decided, is_nemo, read_nemo

_SHARED = {
    *(word for word, _ in SAME.values()),
    *("trainer.max_steps", "trainer.devices", "model.ffn_hidden_size"),
}
"""Keys of NeMo with the same values as our setting, if we have one of this name."""
NEMOS_DEFAULT = "NeMo's default"
LONGEST_VALUE = 80
"""Characters of a value that a note repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """What files of NeMo say and a run here does not do.

    Attributes:
        unchanged: NeMo's keys that do not change the run, with their values.
        unsupported: NeMo's keys that change the model or the numbers, each with its place and why
            it has no equal here.
        remedies: what replaces them, if there is anything.
    """

    unchanged: Mapping[str, Any] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Returns the notes of a plan."""
        found = [
            f"{key} {why}; the plan leaves it out, and a run is refused"
            for key, why in self.unsupported.items()
        ]
        if self.unchanged:
            found.append(
                f"{len(self.unchanged)} settings of NeMo do not change the run here; --cfg lists"
                " them"
            )
        return found

    def check(self) -> None:
        """Checks that a run does all that the files say.

        Raises:
            UsageError: it does not.
        """
        if self.unsupported:
            reasons = "; ".join(f"{key} {why}" for key, why in self.unsupported.items())
            raise UsageError(
                f"NeMo's configuration says what is not done here: {reasons}",
                keys=tuple(self.unsupported),
                remedy=self.remedies or "rampcli plan, which leaves it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NemoFiles:
    """The files of NeMo in a composition, in our settings.

    Attributes:
        indexes: the numbers of the files.
        layers: what they say.
        by_words: what the words of the command line in NeMo's names say.
        notes: effects that may surprise.
        unread: what a run does not do.
    """

    indexes: frozenset[int]
    layers: tuple[Layer, ...]
    by_words: Mapping[str, Entry]
    notes: tuple[str, ...]
    unread: Unread

    def values(self) -> dict[str, Any]:
        """Returns the values of our settings that the files and the words say, by dotted key."""
        entries = [*(layer.entries for layer in self.layers), self.by_words]
        return {key: one.value for each in entries for key, one in each.items()}


def names_of_nemo(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names that words may have beside ours, if composed values are NeMo's."""
    names = {drop_launcher_section(key): value for key, value in values.items()}
    if not is_nemo(names):
        return frozenset(names)
    translated = (one[0] for table in (SAME, CHOICES) for one in table.values())
    return frozenset({*names, *NEUTRAL, *translated})


def nemo_files(
    composition: Composition,
    written: Written,
    *,
    words: Collection[str],
    new: Collection[str],
    place: str,
    chosen: Collection[str],
    report: Report,
) -> NemoFiles | None:
    """Returns the files of NeMo in our settings, or None if there are none.

    Args:
        composition: what Hydra has composed.
        written: the values of files and words together.
        words: keys of all words.
        new: keys of the words that no layer holds yet.
        place: where the words come from.
        chosen: the choices of the user.
        report: receives the errors.
    """
    files = composition.files
    indexes = frozenset(
        index
        for index, one in enumerate(files)
        if not one.is_bundled
        and not all(find_setting(drop_launcher_section(key)) for key in one.leaves)
    )
    owners = owners_of(files)
    section = LAUNCHER_SECTION if any(k.startswith(LAUNCHER_SECTION) for k in owners) else ""
    entries: dict[str, Entry] = {}
    for key, (index, line, _) in owners.items():
        if index in indexes and key.startswith(section):
            name = drop_launcher_section(key)
            raw = composition.values.get(key)
            reference = raw if has_reference(raw) else None
            for one, value in _values(written, key, raw).items():
                entry = Entry(value, files[index].file.name, line, reference=reference)
                entries[name + one.removeprefix(key)] = entry
    if not is_nemo({name: one.value for name, one in entries.items()}):
        return None
    for name in words:
        if written.is_variable(name) and name not in entries:
            continue
        found = _values(written, section + name, written.values.get(section + name))
        value = found.get(section + name)
        if name not in settings():
            entries[name] = Entry(value, place)
        elif name in _SHARED and value is not None:
            with suppress(UsageError):  # it is reported with the errors of our other words
                entries[name] = Entry(typed(name, value), place)
    run = read_nemo({name: one.value for name, one in entries.items()})
    is_chosen = any(files[index].choice in chosen for index in indexes)
    level = Precedence.CHOSEN if is_chosen else Precedence.RECIPE
    of_files, of_words = dict(run.settings), dict[str, Decided]()
    for key, decided in run.settings.items():
        if not {*words}.isdisjoint(decided.keys):
            del of_files[key]
        if not {*new}.isdisjoint(decided.keys):
            of_words[key] = decided
    replaced = {key for key, ours in run.instead.items() if not {*words}.isdisjoint(ours)}
    unsupported = {key: why for key, why in run.unsupported.items() if key not in replaced}
    neutral = {key: NEUTRAL[key][0] for key in unsupported if NEUTRAL.get(key, ((),))[0]}
    return NemoFiles(
        indexes=indexes,
        layers=(
            *(_option_layer(group, one.value, report) for group, one in run.options.items()),
            _layer_of(of_files, entries, level, report),
        ),
        by_words=_layer_of(of_words, entries, Precedence.USER, report).entries,
        notes=tuple(f"{_placed(key, entries)} {text}" for key, text in run.notes.items()),
        unread=Unread(
            unchanged={key: _as_written(entries[key].value) for key in run.unchanged},
            unsupported={_placed(key, entries): why for key, why in unsupported.items()},
            remedies=tuple(f"{key}={shown(values[0])}" for key, values in neutral.items()),
        ),
    )


def _values(written: Written, key: str, value: Any) -> dict[str, Any]:
    """Returns the value of a key, resolved: several if it refers to a section."""
    if not has_reference(value):
        return {key: nemo_yaml.Unresolved(MISSING) if value == MISSING else value}
    return {
        one: nemo_yaml.Unresolved(each.text) if isinstance(each, Unresolved) else each
        for one, each in written.values_of(key).items()
    }


def _as_written(value: Any) -> Any:
    return value.text if isinstance(value, nemo_yaml.Unresolved) else value


def _placed(key: str, entries: Mapping[str, Entry]) -> str:
    """Returns a key of NeMo's with its value and place, if the files have it."""
    if key not in entries:
        return key
    text = shown(_as_written(entries[key].value))
    assigned = f"={printable(text)}" if len(text) <= LONGEST_VALUE else ""
    entry = entries[key]
    return f"{key}{assigned} ({entry.source}{'' if entry.line is None else f':{entry.line}'})"


def _layer_of(
    decided: Mapping[str, Decided],
    entries: Mapping[str, Entry],
    precedence: Precedence,
    report: Report,
) -> Layer:
    """Returns the layer of decided settings. Each names the keys of NeMo that decided it."""
    values = {key: one.value for key, one in decided.items()}
    made = Layer.of("NeMo", precedence, values, report=report)
    named = {}
    for key, entry in made.entries.items():
        words = tuple((word, entries[word]) for word in decided[key].keys if word in entries)
        if not words:
            named[key] = replace(entry, source=NEMOS_DEFAULT)
        elif len(words) == 1 and words[0][0] == key:
            named[key] = replace(words[0][1], value=entry.value)
        else:
            named[key] = replace(entry, by=words[0][0], words=words)
    return Layer("NeMo", precedence, named)


def _option_layer(group: str, option: str, report: Report) -> Layer:
    """Returns the layer of a bundled option that a file of NeMo means, such as its model."""
    name = f"{group}/{option}.yaml"
    leaves = read_file(bundled("conf") / name, name).leaves(group)
    values = {key: value for key, (_, value) in leaves.items()}
    lines = {key: line for key, (line, _) in leaves.items()}
    return Layer.of(name, Precedence.CONF, values, lines=lines, report=report)
