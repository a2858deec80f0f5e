"""Reads YAML files of settings: their leaves by dotted key, their package and their defaults list.

Hydra composes these files (`rampcli.config.composition`). Here they are only read and checked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from rampcli.errors import UsageError, shown
from rampcli.files import bundled, plain_yaml
from rampcli.settings.by_key import is_mapping
from rampcli.settings.phase_keys import PHASES, UNTIL, checked_name, is_phase

LARGEST_FILE_BYTES = 100_000
DEFAULTS, HYDRA = "defaults", "hydra"
"""Keys at the top of a file that are no settings: its defaults list, and settings of Hydra."""
SELF = "_self_"
_HEADER = re.compile(r"\s*#\s*@package\s+(\S+)\s*")


class SettingsLoader(yaml.SafeLoader):
    """Reads YAML as OmegaConf does: without dates, and `1e-3` is a number."""


SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A YAML file of settings.

    Attributes:
        name: its path in the folder that is searched, for example `optim/mine.yaml`.
    """

    path: Path
    name: str
    text: str

    @property
    def package(self) -> str | None:
        """The package of the header `# @package NAME`, or None without one."""
        match = _HEADER.fullmatch(_first_line(self.text))
        return match and match[1]

    @property
    def defaults(self) -> list[tuple[int, str | dict[str, Any]]] | None:
        """The entries of the defaults list, each with its line; None without a list."""
        return _parts_of(self.text)[0]

    def leaves(self, prefix: str = "") -> Mapping[str, tuple[int, Any]]:
        """Returns the line and the value of each setting, with a prefix before the keys.

        Settings of Hydra keep their own keys, `hydra.run.dir`.
        """
        return leaves_of(self.text, prefix)


def read_file(path: Path, name: str) -> SettingsFile:
    """Reads a file of settings.

    Raises:
        UsageError: it is not plain YAML, or its defaults list has an entry that Hydra does not
            have. The error names the line. References are not resolved.
    """
    if path.is_relative_to(bundled("conf")):
        return _read_bundled(path, name)

    def refuse(reason: str, line: int | None = None) -> UsageError:
        at = name if line is None else f"{name}:{line}"
        return UsageError(f"{path}: {reason}", remedy="plain KEY: VALUE lines", set_by=(at,))

    try:
        text, _ = plain_yaml.read(
            path, most_bytes=LARGEST_FILE_BYTES, allows_references=True, may_be_empty=True
        )
    except plain_yaml.NotPlainError as error:
        raise refuse(error.reason, error.line) from error
    file = SettingsFile(path, name, text)
    for number, line in enumerate(text.splitlines(), start=1):
        comment, header, _ = line.partition("@package")
        if (
            header
            and comment.strip() == "#"
            and (file.package is None or _first_line(text) != line)
        ):
            raise refuse("the header # @package NAME is the first line of a file", number)
    for line_number, reason in _wrong_defaults(file):
        raise refuse(reason, line_number)
    try:
        file.leaves()
    except UsageError as error:
        error.set_by = (name,)
        raise
    return file


def _read_bundled(path: Path, name: str) -> SettingsFile:
    text = path.read_text(encoding="utf-8")
    try:
        _parts_of(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration files do not compose: {path}: {reason}") from error
    return SettingsFile(path, name, text)


def _first_line(text: str) -> str:
    return next(filter(str.strip, text.splitlines()), "")


@lru_cache(maxsize=200)
def _parts_of(
    text: str,
) -> tuple[list[tuple[int, str | dict[str, Any]]] | None, tuple[tuple[yaml.Node, yaml.Node], ...]]:
    """Returns the defaults list of a file, and the nodes of its other keys and values."""
    root = yaml.compose(text, Loader=SettingsLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    lists = [value for key, value in pairs if key.value == DEFAULTS]
    rest = tuple((key, value) for key, value in pairs if key.value != DEFAULTS)
    if not lists:
        return None, rest
    items = lists[0].value if isinstance(lists[0], yaml.SequenceNode) else [lists[0]]
    entries = [
        (one.start_mark.line + 1, SafeConstructor().construct_document(one)) for one in items
    ]
    return entries, rest


def _wrong_defaults(file: SettingsFile) -> Iterator[tuple[int, str]]:
    """Yields the line of each entry that no defaults list of Hydra has, and what is wrong."""
    entries = file.defaults or []
    overrides = False
    for line, entry in entries:
        texts = [entry] if isinstance(entry, str) else [*entry] if isinstance(entry, dict) else []
        texts += [str(one) for one in entry.values()] if isinstance(entry, dict) else []
        if any(not text.partition("@")[0].split() for text in texts[:1] if isinstance(text, str)):
            yield line, "an entry of the defaults list has no name"
            return
        if any(re.search(r"\$\{[^}]*:", str(text)) for text in texts):
            yield line, "an entry of a defaults list refers to groups only, as in ${optim}"
        if isinstance(entry, str):
            if overrides and entry != SELF:
                yield line, f"{entry} stands after an override; overrides are the last entries"
            continue
        if not isinstance(entry, dict) or len(entry) != 1 or not isinstance(next(iter(entry)), str):
            yield line, "an entry of a defaults list is a name, or one GROUP: OPTION"
            continue
        ((group, option),) = entry.items()
        names = option if isinstance(option, list) else [option]
        if not all(isinstance(one, str) or one is None for one in names):
            yield line, f"{group}: {shown(option)} is not the name of an option, a list or null"
        *keywords, _ = group.split()
        if not {*keywords} <= {"optional", "override"}:
            yield line, f"{' '.join(keywords)} is not optional or override"
        if overrides and "override" not in keywords:
            yield line, f"{group} stands after an override; overrides are the last entries"
        overrides = overrides or "override" in keywords
    if sum(entry == SELF for _, entry in entries) > 1:
        yield entries[0][0], f"the defaults list has {SELF} twice"


@lru_cache(maxsize=200)
def leaves_of(text: str, prefix: str = "") -> Mapping[str, tuple[int, Any]]:
    """Returns the line and the value of every leaf of a file. Recipes share most of their files."""
    found: dict[str, tuple[int, Any]] = {}
    for key, value in _parts_of(text)[1]:
        of_hydra = key.value == HYDRA
        for leaf, line, one in _leaves([(key, value)], "" if of_hydra else prefix):
            if leaf in found:
                raise UsageError(
                    f"{leaf} is set twice, in lines {found[leaf][0]} and {line}",
                    keys=(leaf,),
                    remedy="one of them",
                )
            found[leaf] = (line, one)
    return found


def _leaves(
    pairs: Iterable[tuple[yaml.Node, yaml.Node]], prefix: str
) -> Iterable[tuple[str, int, Any]]:
    """Yields the dotted key, the line and the value of every leaf of a mapping."""
    for key_node, value_node in pairs:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        # An empty section is a leaf, so that a wrong one is noticed.
        is_section = isinstance(value_node, yaml.MappingNode) and not is_mapping(key)
        if key == PHASES and isinstance(value_node, yaml.SequenceNode):
            yield from _leaves_of_phases(value_node)
        elif is_section and value_node.value:
            yield from _leaves(value_node.value, key)
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
        yield from _leaves(rest, f"{PHASES}.{name}")
