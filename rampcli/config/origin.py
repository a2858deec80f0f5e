"""Where a setting came from, so that an error can say it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import yaml


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


DEFAULT = Source(Layer.SCHEMA, "default")
PYTHON = Source(Layer.USER, "Python")
COMMAND_LINE = Source(Layer.USER, "command line")


@dataclass(frozen=True, slots=True)
class ConfFile:
    """A YAML file that a configuration is made of, and the dotted key that its top level hangs on."""

    path: Path
    name: str
    package: str

    def places(self) -> dict[str, str]:
        """`{dotted key: "group/option.yaml:line"}` for every leaf in the file."""
        root = yaml.compose(self.path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        return {key: f"{self.name}:{line}" for key, line in _leaf_lines(root, self.package)}


def _leaf_lines(node: yaml.Node | None, prefix: str) -> Iterable[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        if isinstance(value_node, yaml.MappingNode):
            yield from _leaf_lines(value_node, key)
        else:
            yield key, key_node.start_mark.line + 1


@dataclass(slots=True)
class Origin:
    """What a configuration was composed of.

    Attributes:
        choices: the arguments of `compose`, and the place that called it.
        files: the YAML files, in the order in which they override each other.
        composed: the leaves as composed; a leaf that differs now was set in Python.
        sources: sources of leaves that are known without reading files.
        laid: the leaves that were laid over the choices.
    """

    choices: tuple[str, ...] = ()
    caller: str = "Python"
    files: tuple[ConfFile, ...] = ()
    composed: Mapping[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    laid: Mapping[str, Any] = field(default_factory=dict)

    def layer(self, key: str, value: Any) -> Layer:
        """The layer of a leaf whose value is now `value`."""
        if key not in self.composed or self.composed[key] != value:
            return Layer.USER
        return self.sources[key].layer

    def place(self, key: str, value: Any) -> str:
        """The place that set a leaf whose value is now `value`: `command line`, `data/mock.yaml:4`, ..."""
        if key not in self.composed or self.composed[key] != value:
            return PYTHON.place
        source = self.sources[key]
        if source.layer is Layer.CONF:
            return self._file_places().get(key, source.place)
        return source.place

    def _file_places(self) -> dict[str, str]:
        places: dict[str, str] = {}
        for file in self.files:
            places |= file.places()
        return places
