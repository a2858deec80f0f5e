"""Where a setting came from, so that an error can say it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from rampcli.batch.dialects.maxtext import SUGGESTED
from rampcli.batch.dialects.spellings import SPELLINGS
from rampcli.config.settings import FOREIGN, settings, shown
from rampcli.errors import RampcliError, UsageErrors


class Layer(IntEnum):
    """How near to the user a value was set; the higher layer wins."""

    SCHEMA = 0
    CONF = 1
    RECIPE = 2
    USER = 3


@dataclass(frozen=True, slots=True)
class Source:
    """The layer that set a value, and the place as a person would name it."""

    layer: Layer
    place: str


@dataclass(frozen=True, slots=True)
class Said:
    """What one place says of a setting."""

    place: str
    value: Any


DEFAULT = Source(Layer.SCHEMA, "default")
PYTHON = Source(Layer.USER, "Python")
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class ConfFile:
    """A YAML file that a configuration is made of, and the dotted key that its top level hangs on."""

    path: Path
    name: str
    package: str

    @cached_property
    def says(self) -> dict[str, Said]:
        """What every leaf in the file says, by dotted key; the place is `group/option.yaml:line`."""
        root = yaml.compose(self.path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        return {
            key: Said(f"{self.name}:{line}", value)
            for key, line, value in _leaf_lines(root, self.package)
        }


def _leaf_lines(node: yaml.Node | None, prefix: str) -> Iterable[tuple[str, int, Any]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        if isinstance(value_node, yaml.MappingNode):
            yield from _leaf_lines(value_node, key)
        else:
            yield (
                key,
                key_node.start_mark.line + 1,
                SafeConstructor().construct_document(value_node),
            )


@dataclass(slots=True)
class Origin:
    """What a configuration was composed of.

    Attributes:
        choices: the arguments of `compose`, and the place that called it.
        files: the YAML files, in the order in which they override each other.
        recipe: what the arguments of `compose` set, and `outdone` those of them that a later choice of a file replaced.
        composed: the leaves as composed; a leaf that differs now was set in Python.
        sources: sources of leaves that are known without reading files.
        laid: the leaves that were laid over the choices.
        words: by canonical key, another system's word that decided it.
    """

    choices: tuple[str, ...] = ()
    caller: str = "Python"
    files: tuple[ConfFile, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    outdone: Mapping[str, Any] = field(default_factory=dict)
    composed: Mapping[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    laid: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def layer(self, key: str, value: Any) -> Layer:
        """The layer of a leaf whose value is now `value`."""
        return self.sources[key].layer if self._is_as_composed(key, value) else Layer.USER

    def place(self, key: str, value: Any) -> str:
        """The place that set a leaf whose value is now `value`: `command line`, `data/mock.yaml:4`, ..."""
        if not self._is_as_composed(key, value):
            return PYTHON.place
        source = self.sources[key]
        said = self._files_say(key) if source.layer is Layer.CONF else []
        return said[-1].place if said else source.place

    def history(self, key: str, value: Any) -> list[Said]:
        """Everything that was said of a leaf whose value is now `value`; the last one holds."""
        default = settings()[key].default
        said = [
            Said(DEFAULT.place, default.value if isinstance(default, Enum) else default),
            *self._files_say(key),
        ]
        if key in self.outdone:
            said.insert(-1, Said(self.caller, self.outdone[key]))
        if key in self.recipe:
            said.append(Said(self.caller, self.recipe[key]))
        if key in self.laid:
            said.append(Said(self.sources[key].place, self.laid[key]))
        if not self._is_as_composed(key, value):
            said.append(Said(PYTHON.place, value))
        return said

    def edits(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Of the leaves as they are now, those that were set in Python."""
        return {key: value for key, value in given.items() if not self._is_as_composed(key, value)}

    def settled(self, given: Mapping[str, Any], decided: Mapping[str, tuple[str, Any]]) -> "Origin":
        """The origin of a configuration in canonical keys.

        Args:
            given: the leaves before, other systems' words among them.
            decided: by canonical key, the key that decided it, and the value.
        """
        edits = self.edits(given)
        sources = self.sources | dict.fromkeys(edits, PYTHON)
        for key, (word, _) in decided.items():
            sources[key] = Source(
                self.layer(word, given[word]),
                f"{word}={shown(given[word])} ({self.place(word, given[word])})",
            )
        values = {key: value for key, (_, value) in decided.items()}
        words = {key: word for key, (word, _) in decided.items() if word in FOREIGN}
        return replace(
            self,
            composed={**given, **values},
            sources=sources,
            laid={**self.laid, **edits, **values},
            words=words,
        )

    def name_sources(self, error: RampcliError) -> None:
        """Let an error about settings say where their values came from, where it does not yet."""
        for one in error.errors if isinstance(error, UsageErrors) else (error,):
            if not one.set_by:
                one.set_by = self._places(one.keys)
                one.remedy = one.remedy and self._in_words(one.remedy)

    def _in_words(self, remedy: str) -> str:
        """A remedy in the words that were used, since two words for one number collide; what they do not say so is left out."""
        ways = remedy.split(", or ")
        for key, word in self.words.items():
            if word in SPELLINGS:
                ways = [way.replace(f"{key}=", f"{word}=") for way in ways]
            elif key not in SUGGESTED:
                ways = [way for way in ways if f"{key}=" not in way]
        return ", or ".join(ways) or f"another {' or '.join(dict.fromkeys(self.words.values()))}"

    def _places(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Where the values of `keys` came from; a key whose place says little is named with its value."""
        places = []
        for key in keys:
            value = self.composed.get(key)
            place = self.place(key, value)
            places.append(
                place if ":" in place or "=" in place else f"{key}={shown(value)} ({place})"
            )
        return tuple(dict.fromkeys(places))

    def _is_as_composed(self, key: str, value: Any) -> bool:
        composed = self.composed.get(key, self)
        return composed is value or bool(
            composed == value
        )  # a value that is not a number equals nothing

    def _files_say(self, key: str) -> list[Said]:
        return [file.says[key] for file in self.files if key in file.says]
