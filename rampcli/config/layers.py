"""A configuration as a stack of layers: one for each file, for the recipe and the command line.

A layer maps dotted keys to a typed value and the place that sets it. The last layer that sets a key
applies, unless another spelling of the key is set nearer to the user. Values, provenance
(`explain`, `--cfg`) and the sources in errors are all read from the stack.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, cached_property
from typing import Any

from rampcli.config.groups import Primary
from rampcli.config.values import put, typed
from rampcli.errors import ErrorReport, RampcliError, Remedy, UsageError, UsageErrors, shown
from rampcli.settings.attributes import words_assigned
from rampcli.settings.by_key import is_of_extension, leaves, settings
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import PHASES, is_dropped, is_phase, split_phase_key
from rampcli.words import COMBINED, FOREIGN, SPELLINGS, bound_by, means_alone

COMMAND_LINE = "command line"
PYTHON = "Python"
DEFAULT = "default"
PLAN_PLACE = "the plan"
"""Place of a value that the plan has decided because nobody has set it."""


class Precedence(IntEnum):
    """How near to the user a layer is.

    The higher one wins where keys compete, for example two spellings of one number.
    """

    SCHEMA = 0
    CONF = 1
    RECIPE = 2
    EDITED = 3
    """What a recipe sets in Python, over what it was composed with."""
    CHOSEN = 4
    """A file of conf/ that the user chose with GROUP=OPTION."""
    USER = 5
    PHASE = 6
    """What a phase sets, over the settings of the run."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The value that one layer gives a setting.

    Attributes:
        value: typed.
        source: where it is set, as a person would name it: `command line`, `data/mock.yaml`, ...
        line: line of the file that sets it; None for a value that is typed or a default.
        by: the other key that decided this value, for example a spelling of another system; None
            for a value set directly.
        words: the words that decided this value, each with its entry; empty for a value set
            directly.
        reference: the value as it was written, with references; None for a plain value.
    """

    value: Any
    source: str
    line: int | None = None
    by: str | None = None
    words: tuple[tuple[str, "Entry"], ...] = ()
    reference: Any = None

    @property
    def place(self) -> str:
        """`command line`, `data/mock.yaml:4`, or the words that decided the value with theirs.

        A value that follows from a reference has it in front: `${model.hidden_size} (mine.yaml:4)`.
        """
        if self.words:
            return ", ".join(f"{word}={shown(one.value)} ({one.place})" for word, one in self.words)
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return place if self.reference is None else f"{shown(self.reference)} ({place})"

    def words_for(self, key: str) -> tuple[tuple[str, "Entry"], ...]:
        """Returns the words that decided the value of a key: the key itself if it is set."""
        return self.words or ((key, self),)

    def sources(self, key: str) -> tuple[str, ...]:
        """Returns what sets a key, for errors: `KEY=VALUE (command line)` or `KEY (FILE:LINE)`."""
        return tuple(
            f"{word}={shown(one.value)} ({one.place})"
            if one.line is None
            else f"{word} ({one.place})"
            for word, one in self.words_for(key)
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """The entries of one place: a file, a recipe, the command line, or Python.

    A word of another system has an entry of its own, as it was written. A spelling also gives our
    key an entry. A word whose meaning depends on other settings does so when all layers are known
    (`config.translate`).
    """

    name: str
    precedence: Precedence
    entries: Mapping[str, Entry]

    @classmethod
    def of(
        cls,
        name: str,
        precedence: Precedence,
        values: Mapping[str, Any],
        *,
        report: ErrorReport,
    ) -> "Layer":
        """Types values and returns them as a layer.

        This is the only way in which values become typed.

        Args:
            name: of the layer, which is the source of its values.
            values: by dotted key, as they were written: counts may be `50M`. A value with a line or
                a reference is an entry.
            report: receives the errors. A value with an error is left out.
        """
        entries: dict[str, Entry] = {}
        for word, value in values.items():
            written = value if isinstance(value, Entry) else Entry(value, name)
            with report.noting(), placed(*written.sources(word)):
                entry = replace(written, value=typed(word, written.value))
                if word in FOREIGN:
                    entries[word] = entry
                if word not in COMBINED:
                    key = SPELLINGS.get(word, word)
                    if entry.value is None and word in SPELLINGS and not settings()[key].optional:
                        continue  # not set, in the other system
                    if key != word:
                        entry = replace(entry, by=word, words=((word, entry),))
                    entries[key] = merged(key, entries.get(key), entry)
        return cls(name, precedence, entries)


def merged(key: str, one: Entry | None, other: Entry) -> Entry:
    """Returns the entry of a key that two words of equal precedence set.

    A null in another system's word contradicts nothing.

    Raises:
        UsageError: the words are two spellings of the key, and their values differ.
    """
    if one is None or one.by == other.by or (one.by and one.value is None):
        return other
    if other.value != one.value and not (other.by and other.value is None):
        names = (one.by or key, other.by or key)
        raise UsageError(
            f"{names[0]}={shown(one.value)} and {names[1]}={shown(other.value)} are two spellings"
            " of one setting and differ",
            keys=names,
            remedy="one of them",
            set_by=(*one.sources(key), *other.sources(key)),
        )
    return one


@contextmanager
def placed(*places: str) -> Iterator[None]:
    """Adds the places to an error that does not name its own."""
    try:
        yield
    except UsageError as error:
        error.set_by = error.set_by or places
        raise


@cache
def _defaults() -> Layer:
    entries = {key: Entry(setting.default, DEFAULT) for key, setting in settings().items()}
    return Layer(DEFAULT, Precedence.SCHEMA, entries)


@dataclass(frozen=True)
class Stack:
    """Layers above the defaults of the schema.

    Attributes:
        composed: layers of files and of a recipe's choices, made by `compose`.
        overrides: layers above those: edits in Python, the command line, and what follows from
            them.
        choices: what `composed` was made from: option names by group, and entries by setting.
        primary: the primary file and the folders that `composed` was made from.
        chosen: the choices that the user made on the command line.
        composition: the files as they were composed; None for layers that no file is in.
        written: the merged values as they were written, with their references.
        words: the words that were laid on top, as they were written. Those in other systems' names
            and those that only references name are in no layer.
        effects: what becomes of each key of another system's files, if there are such files.
    """

    composed: tuple[Layer, ...] = ()
    overrides: tuple[Layer, ...] = ()
    choices: Mapping[str, str | Entry] = field(default_factory=dict)
    primary: Primary = field(default_factory=Primary)
    chosen: frozenset[str] = frozenset()
    composition: Any = field(default=None, compare=False)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False)
    words: Mapping[str, Entry] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    effects: Any = field(default=None, compare=False)

    @cached_property
    def _histories(self) -> dict[str, list[tuple[Precedence, Entry]]]:
        """The entries of every setting and word. The last one applies.

        `phases=null` drops the phases of the layers below it, and `phases.NAME=null` one of them.
        """
        defaults = _defaults()
        histories = {key: [(defaults.precedence, one)] for key, one in defaults.entries.items()}
        for layer in (*self.composed, *self.overrides):
            if drops := [*filter(is_phase, layer.entries)]:
                histories = {k: one for k, one in histories.items() if not is_dropped(k, drops)}
            for key, entry in layer.entries.items():
                if is_phase(key):
                    continue
                history = histories.setdefault(key, [])
                applies = not history or _replaces(layer, entry, *history[-1])
                end = len(history) if applies else -1
                history.insert(end, (layer.precedence, entry))
        return histories

    def entry(self, key: str) -> Entry:
        """Returns the entry that applies to a setting."""
        return self._histories[key][-1][1]

    def precedence(self, key: str) -> Precedence:
        """Returns the precedence of the layer that applies to a setting."""
        return self._histories[key][-1][0]

    def is_of_user(self, key: str) -> bool:
        """Returns whether the value that applies to a setting is the user's."""
        return self.precedence(key) is Precedence.USER

    def history(self, key: str) -> list[Entry]:
        """Returns all entries of a setting, the default first. The last one applies."""
        return [entry for _, entry in self._histories.get(key, ())]

    def values(self) -> dict[str, Any]:
        """Returns the merged value of every setting and given word, by dotted key.

        Settings come first, in the order of the schema.
        """
        return {key: self.entry(key).value for key in self._histories}

    def changed(self, change: Callable[[str, Entry], Entry | None]) -> "Stack":
        """Returns the stack with each of its entries changed, without those that become None."""

        def anew(layer: Layer) -> Layer:
            found = {key: change(key, one) for key, one in layer.entries.items()}
            return replace(layer, entries={k: one for k, one in found.items() if one is not None})

        composed, overrides = (tuple(map(anew, some)) for some in (self.composed, self.overrides))
        return replace(self, composed=composed, overrides=overrides)

    def above(self, *layers: Layer) -> "Stack":
        """Returns the stack with further layers on top."""
        return replace(self, overrides=(*self.overrides, *layers))

    def decided(self, key: str, by: str, value: Any, *, words: Sequence[str] = ()) -> "Stack":
        """Returns the stack with a value that a key has because `by` is set.

        It has the precedence of `by`. `words` are all words that decide it, if there are several.
        """
        decided_by = [pair for word in words or [by] for pair in self.entry(word).words_for(word)]
        entry = replace(self.entry(by), value=value, by=by, words=tuple(decided_by))
        return self.above(Layer(by, self.precedence(by), {key: entry}))

    def edits(self, config: Config) -> dict[str, Any]:
        """Returns the leaves of a configuration that differ from this stack: edits in Python.

        A setting to which a word of another system was assigned is under this word, as on a command
        line. If one of its phases lacks a setting, or they have another order, all phases are set
        anew.

        Raises:
            UsageError: a phase of a list has no name, or that of an earlier one.
        """
        values = dict(leaves(config)) | config.words
        assigned = words_assigned(config)
        anew = self._sets_phases_anew(values)
        edited = {
            assigned.get(key, key): value
            for key, value in values.items()
            if key in assigned
            or key not in self._histories
            or value != self.entry(key).value
            or (anew and split_phase_key(key))
        }
        return {PHASES: None, **edited} if anew else edited

    def _sets_phases_anew(self, keys: Iterable[str]) -> bool:
        """Returns whether keys lack a setting of a phase, or have the phases in another order."""
        before, now = ([*filter(split_phase_key, some)] for some in (self._histories, keys))
        names = _phase_names(before)
        return not {*before} <= {*now} or _phase_names(now)[: len(names)] != names

    def config(self) -> Config:
        """Returns the merged values as a configuration, which remembers this stack."""
        config = Config()
        for key, history in self._histories.items():
            precedence, entry = history[-1]
            is_set = precedence is not Precedence.SCHEMA or is_of_extension(key)
            is_other_word = key in SPELLINGS or (key in COMBINED and entry.value is None)
            if is_set and not is_other_word:  # a spelling has set our key already
                # Lists and mappings are copied: changing them in Python leaves the layer as it is.
                put(config, key, copy(entry.value))
        config.stack = self
        return config

    def name_sources(self, error: RampcliError) -> None:
        """Adds to an error the places of its keys, unless it names places already."""
        for one in error.errors if isinstance(error, UsageErrors) else (error,):
            if not one.set_by:
                known = [key for key in one.keys if key in self._histories]
                sources = [source for key in known for source in self.entry(key).sources(key)]
                one.set_by = tuple(dict.fromkeys(sources))
                one.remedies = self._in_words_used(one.remedies)

    def below_user(self, key: str) -> Entry | None:
        """Returns the entry of a setting without the user's words, or None if it has none."""
        below = [one for level, one in self._histories.get(key, ()) if level < Precedence.USER]
        return below[-1] if below else None

    def _in_words_used(self, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
        """Returns remedies with the spellings that the user typed in place of canonical keys.

        Canonical keys would contradict those spellings. Remedies that they cannot express are
        left out.
        """
        spellings: dict[str, str] = {}
        decided_by: dict[str, str] = {}
        for key in self._histories:
            entry = self.entry(key)
            of_phase = split_phase_key(entry.by or "")
            is_spelled = of_phase and SPELLINGS.get(of_phase[1], of_phase[1]) == key
            if entry.by and (is_spelled or is_spelling(key, entry)):
                spellings[key] = entry.by
            elif entry.by in FOREIGN and key not in FOREIGN:
                decided_by |= dict.fromkeys(bound_by(entry.by, key), entry.by)
        kept: list[Remedy] = []
        left_out: list[str] = []
        for one in remedies:
            keys = () if isinstance(one, str) else one.values
            if decided := [decided_by[key] for key in keys if key in decided_by]:
                left_out += decided
            else:
                kept.append(one if isinstance(one, str) else one.renamed(spellings))
        if left_out and not kept:
            kept.append(f"another {' or '.join(dict.fromkeys(left_out))}")
        return tuple(kept)


def _phase_names(keys: Iterable[str]) -> list[str]:
    """Returns the names of the phases that keys of phases are about, in their order."""
    return [*dict.fromkeys(key.split(".")[1] for key in keys)]


def is_spelling(key: str, entry: Entry) -> bool:
    """Returns whether the word that decided an entry means its key alone."""
    if entry.by is None or not means_alone(entry.by, key):
        return False
    # Another word may take part in the value.
    return entry.by not in COMBINED or bool(dict(entry.words)[entry.by].value == entry.value)


def _replaces(layer: Layer, entry: Entry, precedence: Precedence, below: Entry) -> bool:
    """Returns whether the entry of a layer applies in place of the one below, or hides behind it.

    It hides if the one below is another spelling of the setting and nearer to the user.
    """
    is_decided = layer.name == entry.by  # by `Stack.decided`
    return is_decided or entry.by == below.by or layer.precedence >= precedence


def stack_of(config: Config) -> Stack:
    """Returns the stack that a configuration was made from: an empty one if it was made by hand."""
    stack: Stack = getattr(config, "stack", None) or Stack()
    return stack


def with_values(config: Config, values: Mapping[str, Any], place: str) -> Stack:
    """Returns the layers of a resolved configuration with other values for some settings on top.

    Args:
        values: typed values, by dotted key.
    """
    entries = {key: Entry(value, place) for key, value in values.items()}
    return stack_of(config).above(Layer(place, Precedence.USER, entries))


def as_recipe(config: Config) -> Config:
    """Returns the settings of a run or a phase as those of a recipe, which words change."""
    stack = stack_of(config)
    layers = tuple(replace(layer, precedence=Precedence.RECIPE) for layer in stack.overrides)
    return replace(stack, overrides=layers).config()


def edited_stack(
    config: Config, name: str, precedence: Precedence, *, report: ErrorReport
) -> Stack:
    """Returns the stack of a configuration with what was set in Python as a layer on top.

    Raises:
        UsageError: a phase of a list has no name, or that of an earlier one.
    """
    stack = stack_of(config)
    with placed(name):
        edits = stack.edits(config)
    return stack.above(Layer.of(name, precedence, edits, report=report))


def build_config(values: Mapping[str, Any], *, place: str) -> Config:
    """Returns the typed configuration with these values; the rest are defaults.

    Args:
        values: by dotted key. Counts may be written `50M`.

    Raises:
        UsageError: all unknown keys and values of the wrong type together.
    """
    report = ErrorReport()
    layer = Layer.of(place, Precedence.USER, values, report=report)
    report.close()
    return Stack(overrides=(layer,)).config()


@contextmanager
def sources_named(config: Config | Stack) -> Iterator[None]:
    """Adds to an error of the block where the values of a configuration come from."""
    try:
        yield
    except RampcliError as error:
        (config if isinstance(config, Stack) else stack_of(config)).name_sources(error)
        raise
