"""Turns composed files of NeMo into layers of our settings, and says what becomes of each key.

`rampcli.words.nemo_yaml` knows what the keys mean.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.batch.quantities import listed
from rampcli.config.composition import Composition
from rampcli.config.file_layers import owners_of
from rampcli.config.layers import Entry, Layer, Precedence
from rampcli.config.reading import drop_launcher_section
from rampcli.config.references import MISSING, Unresolved, has_reference
from rampcli.config.values import typed
from rampcli.config.written import Written
from rampcli.config.yaml_files import read_file
from rampcli.errors import Report, UsageError, printable, shown
from rampcli.files.bundled import bundled
from rampcli.settings.by_key import find_setting, settings
from rampcli.settings.phase_keys import is_phase, split_phase_key
from rampcli.words import FOREIGN, SPELLINGS, nemo_yaml
from rampcli.words.nemo import LAUNCHER_SECTION
from rampcli.words.nemo_keys import CHOICES, NEUTRAL, SAME
from rampcli.words.nemo_yaml import Decided, NemoRun, is_nemo, keys_by_setting, read_nemo

NEMOS_DEFAULT = "NeMo's default"
MOST_DECIDED = 6
"""Settings that the meaning of a key names."""
LONGEST_VALUE = 80
"""Characters of a value that a note repeats."""

_TRANSLATED = {one[0]: ours for table in (SAME, CHOICES) for ours, one in table.items()}
"""Our key for each key of NeMo that alone decides a setting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NemoEffects:
    """Effect of each key of NeMo's files: what it decides, or why it changes nothing here.

    Attributes:
        given: NeMo's keys that files and words set, with their values.
        decides: what keys of NeMo decide: our settings, and options such as `model=llama3_8b`.
        unchanged: NeMo's keys that do not change the run, with their values.
        unsupported: NeMo's keys that change the model or the numbers, and why each has no equal
            here.
        replaced: NeMo's keys without an equal, and the user's settings that a run uses instead.
        remedies: what replaces them, if there is anything.
    """

    given: Mapping[str, Entry] = field(default_factory=dict)
    decides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchanged: Mapping[str, Any] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()

    def decided_by(self, key: str) -> tuple[str, ...] | None:
        """Returns what a key of NeMo decides; None if the files are not NeMo's or lack the key.

        For a key that the files leave out, it is the setting that NeMo's default decides.
        """
        if not self.given:
            return None
        if (decided := self.decides.get(key) or self.replaced.get(key)) is not None:
            return decided
        if key in self.given or key in self.unsupported or key in NEUTRAL:
            return ()
        return (_TRANSLATED[key],) if key in _TRANSLATED else None

    def meaning(self, key: str) -> str:
        """Returns what a key of NeMo does in the run."""
        if key in self.unsupported:
            return f"The plan leaves it out, and a run is refused: {self.unsupported[key]}."
        decided = self.decided_by(key)
        if not decided:
            return "It does not change the run here."
        ours = listed(decided, most=MOST_DECIDED)
        if key in self.replaced:
            return f"Its value has no equal here. The run uses your {ours} instead."
        if key not in self.given:
            return f"The files do not set it, so NeMo's default decides {ours}."
        return f"It decides {ours}."

    def _reasons(self) -> list[str]:
        return [f"{_placed(key, self.given)} {why}" for key, why in self.unsupported.items()]

    def left_out(self) -> list[str]:
        """Returns a note for each key that a plan leaves out."""
        left = "the plan leaves it out, and a run is refused"
        return [f"{reason}; {left}" for reason in self._reasons()]

    def unchanged_among(self, keys: Collection[str]) -> list[str]:
        """Returns a note for each of some keys that does not change the run."""
        return [
            f"{_placed(key, self.given)} does not change the run here"
            for key in keys
            if key in self.unchanged
        ]

    def notes(self) -> list[str]:
        """Returns the notes of a plan."""
        found = self.left_out()
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
            raise UsageError(
                f"keys of NeMo's files have no equal here: {'; '.join(self._reasons())}",
                keys=tuple(self.unsupported),
                remedy=self.remedies or "rampcli plan, which leaves it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NemoFiles:
    """The files of NeMo in a composition, in our settings.

    Attributes:
        indexes: the numbers of the files.
        layers: what they say.
        by_words: settings that words decide through NeMo's rules.
        deleted: words `~KEY` that delete keys of the files.
        notes: effects that may surprise.
        effects: what a run does and does not do of them.
    """

    indexes: frozenset[int]
    layers: tuple[Layer, ...]
    by_words: Mapping[str, Entry]
    deleted: frozenset[str]
    notes: tuple[str, ...]
    effects: NemoEffects

    def values(self) -> dict[str, Any]:
        """Returns the values of our settings that the files and the words say, by dotted key."""
        entries = [*(layer.entries for layer in self.layers), self.by_words]
        return {key: one.value for each in entries for key, one in each.items()}


def names_of_nemo(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names that words may have beside ours, if composed values are NeMo's."""
    names = {drop_launcher_section(key): value for key, value in values.items()}
    if not is_nemo(names):
        return frozenset(names)
    return frozenset({*names, *NEUTRAL, *_TRANSLATED})


def nemo_files(
    composition: Composition,
    written: Written,
    *,
    words: Collection[str],
    before: Mapping[str, Entry],
    place: str,
    chosen: Collection[str],
    report: Report,
) -> NemoFiles | None:
    """Returns the files of NeMo in our settings, or None if there are none.

    Args:
        composition: what Hydra has composed.
        written: the values of files and words together.
        words: keys of the words.
        before: words that were laid on top before these.
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
    keys = owners_of(files)
    section = LAUNCHER_SECTION if any(k.startswith(LAUNCHER_SECTION) for k in keys) else ""
    of_these = _entries_of_files(composition, written, indexes, section)
    leaves = {name: one.value for name, one in of_these.items()}
    if not is_nemo(leaves):
        return None
    places = {name: one.source for name, one in before.items()} | dict.fromkeys(words, place)
    entries, names = _with_words(of_these, written, places)
    of_files = read_nemo(leaves).settings
    run = read_nemo({name: one.value for name, one in entries.items()})
    new = {name for name, word in names.items() if word in words}
    # A word for another setting, such as the batch that the samples of a validation follow, leaves
    # what it takes part in as near to the user as the file is.
    setting_of = {name: ours for ours, name in keys_by_setting(leaves).items()}
    partly = set()
    of_words = dict[str, Decided]()
    for key, one in run.settings.items():
        typed_names = names.keys() & {*one.keys}
        if typed_names and all(setting_of.get(name, key) != key for name in typed_names):
            partly.add(key)
        elif not new.isdisjoint(one.keys):
            of_words[key] = one
    deleted = {name for name in names if name not in entries}
    of_files = {
        key: one
        for key, one in of_files.items()
        if key in run.settings and key not in partly and deleted.isdisjoint(one.keys)
    }
    with_words_only = {key: one for key, one in run.settings.items() if key not in of_files}
    is_chosen = any(files[index].choice in chosen for index in indexes)
    level = Precedence.CHOSEN if is_chosen else Precedence.RECIPE
    replaced = {
        key: own
        for key, ours in run.instead.items()
        if (own := tuple(one for one in ours if one in places))
    }
    unsupported = {key: why for key, why in run.unsupported.items() if key not in replaced}
    neutral = {key: NEUTRAL[key][0] for key in unsupported if NEUTRAL.get(key, ((),))[0]}
    return NemoFiles(
        indexes=indexes,
        layers=(
            *(_option_layer(group, one.value, report) for group, one in run.options.items()),
            _layer_of(with_words_only, entries, level, report),
            _layer_of(of_files, of_these, level, report),
        ),
        by_words=_layer_of(
            {key: _renamed(one, names) for key, one in of_words.items()},
            entries | {word: entries[name] for name, word in names.items() if name in entries},
            Precedence.USER,
            report,
        ).entries,
        deleted=frozenset(word for word in names.values() if word.startswith("~")),
        notes=tuple(f"{_placed(key, entries)} {text}" for key, text in run.notes.items()),
        effects=NemoEffects(
            given={key: replace(one, value=_as_written(one.value)) for key, one in entries.items()},
            decides=_decided_by(run),
            unchanged={key: _as_written(entries[key].value) for key in run.unchanged},
            unsupported=unsupported,
            replaced=replaced,
            remedies=tuple(f"{key}={shown(values[0])}" for key, values in neutral.items()),
        ),
    )


def _entries_of_files(
    composition: Composition, written: Written, indexes: Collection[int], section: str
) -> dict[str, Entry]:
    """Returns what files of NeMo set, by NeMo's key.

    Args:
        composition: what Hydra has composed.
        written: the values of files and words together.
        indexes: the numbers of the files.
        section: what the keys begin with in Hydra's tree.
    """
    entries: dict[str, Entry] = {}
    for key, (index, line, _) in owners_of(composition.files).items():
        if index in indexes and key.startswith(section):
            name = drop_launcher_section(key)
            raw = composition.values.get(key)
            reference = raw if has_reference(raw) else None
            for one, value in _values(written, key, raw).items():
                source = composition.files[index].file.name
                entry = Entry(value, source, line, reference=reference)
                entries[name + one.removeprefix(key)] = entry
    return entries


def _with_words(
    entries: Mapping[str, Entry], written: Written, places: Mapping[str, str]
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns NeMo's keys as files and words set them, and the word for each that a word sets.

    Our words, and their other spellings, stand for NeMo's keys with the same values.

    Args:
        entries: what the files set.
        written: the values of files and words together.
        places: where each word comes from.
    """
    found, names = dict(entries), dict[str, str]()
    of_settings = keys_by_setting({name: one.value for name, one in entries.items()})
    for word, place in places.items():
        name = word.removeprefix("~")
        is_nemos = name in entries or name in _TRANSLATED
        if word != name:
            if found.pop(name, None) is not None:
                names[name] = word
            continue
        if not is_nemos and (ours := of_settings.get(SPELLINGS.get(word, word))) is not None:
            name = ours
            if name != word and name in places:
                continue  # the word in NeMo's name says the same, or is refused beside this one
        elif not is_nemos and (
            find_setting(name) is not None or is_phase(name) or written.is_variable(name)
        ):
            continue
        key = written.name_of(word)
        raw = written.values.get(key)
        reference = raw if has_reference(raw) else None
        entry = Entry(_values(written, key, raw).get(key), place, reference=reference)
        for inside in [one for one in found if one.startswith(f"{name}.")]:
            names[inside] = word
            del found[inside]  # a value in place of a section
        if word not in settings() and word not in FOREIGN:
            found[name], names[name] = entry, word
        elif entry.value is not None:
            with suppress(UsageError):  # which is reported with the words in our names
                found[name] = replace(entry, value=typed(word, entry.value))
                names[name] = word
    return found, names


def _renamed(decided: Decided, names: Mapping[str, str]) -> Decided:
    """Returns a decision with the words that were typed in place of NeMo's keys."""
    return replace(decided, keys=tuple(names.get(key, key) for key in decided.keys))


def _decided_by(run: NemoRun) -> dict[str, tuple[str, ...]]:
    """Returns what each key of NeMo decides: our settings and options."""
    options = {f"{group}={one.value}": one for group, one in run.options.items()}
    found: dict[str, tuple[str, ...]] = {}
    for ours, one in {**options, **run.settings}.items():
        for key in one.keys:
            found[key] = (*found.get(key, ()), ours)
    return found


def check_contradictions(
    nemo: NemoFiles, ours: Layer, words: Collection[str]
) -> Iterator[UsageError]:
    """Yields an error for each word in NeMo's name whose setting another word sets differently.

    Args:
        nemo: the files with the words in NeMo's names.
        ours: the words in our names.
        words: keys of all words.
    """
    for word in words:
        decided = () if word in settings() else nemo.effects.decides.get(word, ())
        decided = tuple(key for key in decided if split_phase_key(key) is None)
        if _TRANSLATED.get(word) in decided:
            decided = (_TRANSLATED[word],)
        if not decided or not all(
            _differ(nemo.by_words.get(key), ours.entries.get(key)) for key in decided
        ):
            continue
        key, one = decided[0], nemo.effects.given[word]
        other = ours.entries[key]
        yield UsageError(
            f"{word}={shown(one.value)} and {key}={shown(other.value)} set one setting to"
            " different values",
            keys=(word, key),
            remedy="one of them",
            set_by=(*one.sources(word), *other.sources(key)),
        )


def _differ(one: Entry | None, other: Entry | None) -> bool:
    """Returns whether two words set a setting to different values. A null contradicts nothing."""
    values = [each.value for each in (one, other) if each is not None and each.value is not None]
    return len(values) == 2 and values[0] != values[1]


def _values(written: Written, key: str, value: Any) -> dict[str, Any]:
    """Returns the value of a key, resolved: several if it refers to a section."""
    if not has_reference(value):
        return {key: nemo_yaml.Unresolved(MISSING) if value == MISSING else value}
    return {
        one: nemo_yaml.Unresolved(each.text) if isinstance(each, Unresolved) else each
        for one, each in written.values_of(key).items()
    } or {key: nemo_yaml.Unresolved(shown(value))}  # another value has replaced it


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
