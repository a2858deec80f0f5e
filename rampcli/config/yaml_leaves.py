"""Reads files of settings: the leaves of YAML by dotted key, and the phases that a file lists."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from rampcli.config.phase_keys import PHASES, UNTIL, checked_name, is_phase
from rampcli.config.settings import is_mapping


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML as OmegaConf does: without dates."""


SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@lru_cache(maxsize=100)
def leaves_of(text: str, prefix: str = "") -> Mapping[str, tuple[int, Any]]:
    """Returns the line and the value of every leaf of a file. Recipes share most of their files."""
    root = yaml.compose(text, Loader=SettingsLoader)
    return {key: (line, value) for key, line, value in _leaves(root, prefix)}


def _leaves(node: yaml.Node | None, prefix: str) -> Iterable[tuple[str, int, Any]]:
    """Yields the dotted key, the line and the value of every leaf of a file."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        # An empty section is a leaf, so that a wrong one is noticed.
        is_section = isinstance(value_node, yaml.MappingNode) and not is_mapping(key)
        if key == PHASES and isinstance(value_node, yaml.SequenceNode):
            yield from _leaves_of_phases(value_node)
        elif is_section and value_node.value:
            yield from _leaves(value_node, key)
        elif is_section and is_phase(key) and key != PHASES:
            yield _empty_phase(key, key_node.start_mark.line + 1)
        else:
            value = SafeConstructor().construct_document(value_node)
            yield key, key_node.start_mark.line + 1, value


def _empty_phase(key: str, line: int) -> tuple[str, int, Any]:
    """Returns the leaf that stands for a phase without settings, which has no other leaf."""
    return f"{key}.{UNTIL}", line, None


def _leaves_of_phases(node: yaml.SequenceNode) -> Iterable[tuple[str, int, Any]]:
    """Yields the leaves of a list of phases, each with its `name`, as `_leaves` does."""
    seen: set[str] = set()
    for item in node.value:
        pairs = item.value if isinstance(item, yaml.MappingNode) else []
        names = [value.value for key, value in pairs if key.value == "name"]
        line = item.start_mark.line + 1
        name = checked_name(names[0] if len(names) == 1 else None, seen, place=f", line {line}")
        seen.add(name)
        if len(pairs) == 1:
            yield _empty_phase(f"{PHASES}.{name}", line)
        rest = [(key, value) for key, value in pairs if key.value != "name"]
        inside = yaml.MappingNode(item.tag, rest, item.start_mark, item.end_mark)
        yield from _leaves(inside, f"{PHASES}.{name}")
