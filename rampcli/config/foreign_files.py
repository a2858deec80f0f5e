"""Turns composed files of another system into layers of ours, and says what becomes of each key.

The format of the files (`rampcli.words.formats`) knows what the keys mean.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rampcli.batch.quantities import listed
from rampcli.config.composition import Composition
from rampcli.config.file_layers import owners_of
from rampcli.config.layers import Entry, Layer, Precedence
from rampcli.config.references import MISSING, has_reference
from rampcli.config.values import typed
from rampcli.config.written import Written
from rampcli.config.yaml_files import read_file
from rampcli.errors import ErrorReport, UsageError, printable, shown
from rampcli.files import bundled
from rampcli.settings.by_key import find_setting, settings
from rampcli.settings.phase_keys import is_phase, split_phase_key
from rampcli.words import FOREIGN, SPELLINGS, format_of, wrapped
from rampcli.words.formats import Decided, FileFormat, ForeignRun, Unresolved

MOST_DECIDED = 6
"""Settings that the meaning of a key names."""
LONGEST_VALUE = 80
"""Characters of a value that a note repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """Effect of each key of another system's files: what it decides, or why it changes nothing.

    Attributes:
        given: its keys that files and words set, with their values.
        run: what they mean here.
        words: those that were typed.
    """

    format: FileFormat
    given: Mapping[str, Entry]
    run: ForeignRun
    words: Collection[str]

    @property
    def decides(self) -> dict[str, tuple[str, ...]]:
        """What their keys decide: our settings, and options such as `model=llama3_8b`."""
        options = {f"{group}={one.value}": one for group, one in self.run.options.items()}
        found: dict[str, tuple[str, ...]] = {}
        for ours, one in {**options, **self.run.settings}.items():
            for key in one.keys:
                found[key] = (*found.get(key, ()), ours)
        return found

    @property
    def unchanged(self) -> dict[str, Any]:
        """Their keys that do not change the run, with their values."""
        return {key: self.given[key].value for key in self.run.unchanged}

    @property
    def replaced(self) -> dict[str, tuple[str, ...]]:
        """Their keys without an equal, and the user's settings that a run uses instead."""
        return {
            key: own
            for key, ours in self.run.instead.items()
            if (own := tuple(one for one in ours if one in self.words))
        }

    @property
    def unsupported(self) -> dict[str, str]:
        """Their keys that change the model or the numbers, and why each has no equal here."""
        replaced = self.replaced
        return {key: why for key, why in self.run.unsupported.items() if key not in replaced}

    def decided_by(self, key: str) -> tuple[str, ...] | None:
        """Returns what one of their keys decides; None if the files lack the key.

        For a key that the files leave out, it is the setting that their default decides.
        """
        if (decided := self.decides.get(key) or self.replaced.get(key)) is not None:
            return decided
        if key in self.given or key in self.unsupported or key in self.format.neutral:
            return ()
        alone = self.format.alone
        return (alone[key],) if key in alone else None

    def meaning(self, key: str) -> str:
        """Returns what one of their keys does in the run."""
        if key in self.unsupported:
            return f"The plan leaves it out, and a run is refused: {self.unsupported[key]}."
        decided = self.decided_by(key)
        if not decided:
            return "It does not change the run here."
        ours = listed(decided, most=MOST_DECIDED)
        if key in self.replaced:
            return f"Its value has no equal here. The run uses your {ours} instead."
        if key not in self.given:
            return f"The files do not set it, so {self.format.name}'s default decides {ours}."
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
        texts = self.run.notes.items()
        found = [f"{_placed(key, self.given)} {text}" for key, text in texts] + self.left_out()
        if self.unchanged:
            found.append(
                f"{len(self.unchanged)} settings of {self.format.name} do not change the run here;"
                " --cfg lists them"
            )
        return found

    def check(self) -> None:
        """Checks that a run does all that the files say.

        Raises:
            UsageError: it does not.
        """
        if unsupported := self.unsupported:
            neutral = {key: self.format.neutral.get(key, ((), ""))[0] for key in unsupported}
            remedies = [f"{key}={shown(one[0])}" for key, one in neutral.items() if one]
            raise UsageError(
                f"keys of {self.format.name}'s files have no equal here:"
                f" {'; '.join(self._reasons())}",
                keys=tuple(unsupported),
                remedy=remedies or "rampcli plan, which leaves it out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignFiles:
    """The files of another system in a composition, in our settings.

    Attributes:
        by_words: settings that words decide through the rules of the format.
        deleted: words `~KEY` that delete keys of the files.
    """

    indexes: frozenset[int]
    layers: tuple[Layer, ...]
    by_words: Mapping[str, Entry]
    deleted: frozenset[str]
    effects: Effects

    def values(self) -> dict[str, Any]:
        """Returns the values of our settings that the files and the words say, by dotted key."""
        entries = [*(layer.entries for layer in self.layers), self.by_words]
        return {key: one.value for each in entries for key, one in each.items()}


def further_names(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the keys that words may set although they are not settings of ours.

    They are the keys of the composed files. If another system has written these, they are also
    other keys of this system, which the files leave out.

    Args:
        values: of the composed files, by dotted key.
    """
    form = format_of(values)
    return frozenset({*values, *((*form.neutral, *form.alone) if form else ())})


def foreign_files(
    composition: Composition,
    written: Written,
    *,
    words: Collection[str],
    before: Mapping[str, Entry],
    place: str,
    chosen: Collection[str],
    report: ErrorReport,
) -> ForeignFiles | None:
    """Returns the files of another system in our settings, or None if there are none.

    Args:
        written: the values of files and words together.
        words: keys of the words, which come from `place`.
        before: words that were laid on top before these.
    """
    files = composition.files
    indexes = frozenset(
        index
        for index, one in enumerate(files)
        if not one.is_bundled and not all(map(find_setting, one.leaves))
    )
    of_files = _entries_of_files(composition, written, indexes)
    leaves = {name: one.value for name, one in of_files.items()}
    if (form := format_of(leaves)) is None:
        return None
    places = {name: one.source for name, one in before.items()} | dict.fromkeys(words, place)
    alone = form.read(leaves)
    entries, names = _with_words(of_files, written, places, form.alone, alone.names)
    run = form.read({name: one.value for name, one in entries.items()})
    by_files, by_words = _parted(alone, run, names, deleted=names.keys() - entries, new=words)
    by_both = {key: one for key, one in run.settings.items() if key not in by_files}
    is_chosen = any(files[index].choice in chosen for index in indexes)
    level = Precedence.CHOSEN if is_chosen else Precedence.RECIPE
    return ForeignFiles(
        indexes=indexes,
        layers=(
            *(_option_layer(group, one.value, report) for group, one in run.options.items()),
            _layer_of(form, by_both, entries, level, report),
            _layer_of(form, by_files, of_files, level, report),
        ),
        by_words=_layer_of(form, by_words, entries, Precedence.USER, report, names).entries,
        deleted=frozenset(word for word in names.values() if word.startswith("~")),
        effects=Effects(
            format=form,
            given={
                key: replace(one, value=one.value.text)
                if isinstance(one.value, Unresolved)
                else one
                for key, one in entries.items()
            },
            run=run,
            words=frozenset(places),
        ),
    )


def _parted(
    alone: ForeignRun,
    run: ForeignRun,
    names: Mapping[str, str],
    *,
    deleted: Collection[str],
    new: Collection[str],
) -> tuple[dict[str, Decided], dict[str, Decided]]:
    """Returns the settings that the files decide alone, and those that new words decide.

    A word for another setting, such as the batch that the samples of a validation follow, leaves
    what it takes part in as near to the user as the file is. Such a setting is in neither.

    Args:
        names: the word for each of their keys that a word sets or deletes.
        new: the words that have not been laid on top before.
    """
    setting_of = {name: ours for ours, name in alone.names.items()}
    partly: set[str] = set()
    by_words: dict[str, Decided] = {}
    for key, one in run.settings.items():
        typed_names = names.keys() & {*one.keys}
        if typed_names and all(setting_of.get(name, key) != key for name in typed_names):
            partly.add(key)
        elif any(names.get(name) in new for name in one.keys):
            by_words[key] = one
    by_files = {
        key: one
        for key, one in alone.settings.items()
        if key in run.settings and key not in partly and not {*deleted} & {*one.keys}
    }
    return by_files, by_words


def _entries_of_files(
    composition: Composition, written: Written, indexes: Collection[int]
) -> dict[str, Entry]:
    """Returns what files of another system set, by its key. `indexes` are their numbers."""
    entries: dict[str, Entry] = {}
    placed = {key for index in indexes for key in composition.files[index].placed}
    is_wrapped = any(key.startswith(wrapped("")) for key in placed)
    for key, (index, line, _) in owners_of(composition.files, indexes).items():
        if is_wrapped and wrapped(key) not in placed:
            continue
        file = composition.files[index]
        raw = file.leaves[key][1] if key in composition.values else None
        reference = raw if has_reference(raw) else None
        for name, value in _values(written, key, raw).items():
            entries[name] = Entry(value, file.file.name, line, reference=reference)
    return entries


def _with_words(
    entries: Mapping[str, Entry],
    written: Written,
    places: Mapping[str, str],
    alone: Mapping[str, str],
    of_settings: Mapping[str, str],
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Returns their keys as files and words set them, and the word for each that a word sets.

    Our words, and their other spellings, stand for their keys with the same values.

    Args:
        of_settings: their key for each of our settings that takes the same values.
    """
    found, names = dict(entries), dict[str, str]()
    for word, place in places.items():
        name = word.removeprefix("~")
        is_theirs = name in entries or name in alone
        if word != name:
            if found.pop(name, None) is not None:
                names[name] = word
            continue
        if not is_theirs and (ours := of_settings.get(SPELLINGS.get(word, word))) is not None:
            name = ours
            if name != word and name in places:
                continue  # the word in their name says the same, or is refused beside this one
        elif not is_theirs and (
            find_setting(name) is not None or is_phase(name) or written.is_variable(name)
        ):
            continue
        raw = written.values.get(word)
        reference = raw if has_reference(raw) else None
        entry = Entry(_values(written, word, raw).get(word), place, reference=reference)
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


def check_contradictions(
    files: ForeignFiles, ours: Layer, words: Collection[str]
) -> Iterator[UsageError]:
    """Yields an error for each word in their name whose setting another word sets differently."""
    alone = files.effects.format.alone
    for word in words:
        decided = () if word in settings() else files.effects.decides.get(word, ())
        decided = tuple(key for key in decided if split_phase_key(key) is None)
        if alone.get(word) in decided:
            decided = (alone[word],)
        if not decided or not all(
            _differ(files.by_words.get(key), ours.entries.get(key)) for key in decided
        ):
            continue
        key, one = decided[0], files.effects.given[word]
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
        return {key: Unresolved(MISSING) if value == MISSING else value}
    # Another value may have replaced the reference.
    return written.values_of(key) or {key: Unresolved(shown(value))}


def _placed(key: str, entries: Mapping[str, Entry]) -> str:
    """Returns one of their keys with its value and place, if the files have it."""
    if key not in entries:
        return key
    text = shown(entries[key].value)
    assigned = f"={printable(text)}" if len(text) <= LONGEST_VALUE else ""
    entry = entries[key]
    return f"{key}{assigned} ({entry.source}{'' if entry.line is None else f':{entry.line}'})"


def _layer_of(
    form: FileFormat,
    decided: Mapping[str, Decided],
    entries: Mapping[str, Entry],
    precedence: Precedence,
    report: ErrorReport,
    names: Mapping[str, str] | None = None,
) -> Layer:
    """Returns the layer of decided settings. Each names their keys that decided it.

    Keys that have `names` are named by these.
    """
    values = {key: one.value for key, one in decided.items()}
    made = Layer.of(form.name, precedence, values, report=report)
    named = {}
    for key, entry in made.entries.items():
        words = tuple(
            ((names or {}).get(word, word), entries[word])
            for word in decided[key].keys
            if word in entries
        )
        if not words:
            named[key] = replace(entry, source=f"{form.name}'s default")
        elif len(words) == 1 and words[0][0] == key:
            named[key] = replace(words[0][1], value=entry.value)
        else:
            named[key] = replace(entry, by=words[0][0], words=words)
    return Layer(form.name, precedence, named)


def _option_layer(group: str, option: str, report: ErrorReport) -> Layer:
    """Returns the layer of a bundled option that a file means, such as its model."""
    name = f"{group}/{option}.yaml"
    leaves = read_file(bundled("conf") / name, name).leaves(group)
    values = {key: Entry(value, name, line) for key, (line, value) in leaves.items()}
    return Layer.of(name, Precedence.CONF, values, report=report)
