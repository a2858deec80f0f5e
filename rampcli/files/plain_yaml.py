"""Reads YAML of plain mappings, lists and scalars.

Anchors, aliases and tags are refused, because they could fill the memory or run code. References
(`${...}`) are refused in files that the user has not chosen.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rampcli.files.guarded_folder import read_content

DEEPEST_LEVEL = 20
"""Settings are only a few levels deep."""
LONGEST_NUMBER = 100
AMBIGUOUS = re.compile(r"[-+]?0[0-7_]+$|[^:]+:")
"""Octal and sexagesimal numbers of YAML 1.1."""
WORD = "tag:yaml.org,2002:str"
SCALARS = tuple(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp")
)
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


class NotPlainError(Exception):
    """A file is not plain YAML.

    Attributes:
        line: number of the line, from 1; None if the reason concerns no single line.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def read(
    path: Path, *, most_bytes: int, allows_references: bool = False, may_be_empty: bool = False
) -> tuple[str, yaml.MappingNode]:
    """Returns the text of a file and its root node, which `values_of` turns into values.

    Args:
        allows_references: whether a value may have references. They are not resolved here.
        may_be_empty: whether the file may have no settings. Its root is then an empty mapping.

    Raises:
        NotPlainError: the file cannot be read, is larger than `most_bytes`, or is not a plain
            mapping.
    """
    try:
        text = read_content(path, most_bytes=most_bytes).decode()
        _check_tokens(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise NotPlainError(error.strerror or str(error)) from error
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        problem = ", ".join(filter(None, (error.context, error.problem)))
        raise NotPlainError(f"not YAML: {problem}", line) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise NotPlainError(f"not YAML: {' '.join(str(error).split())}") from error
    if may_be_empty and root is None:
        root = yaml.MappingNode("tag:yaml.org,2002:map", [])
    elif not isinstance(root, yaml.MappingNode) or (not root.value and not may_be_empty):
        raise NotPlainError("no settings")
    for misfit in _misfits(root, allows_references=allows_references):
        raise misfit
    return text, root


def values_of(root: yaml.MappingNode) -> dict[str, Any]:
    """Returns the values of a root node.

    Raises:
        NotPlainError: a node cannot be converted to a value, for example the date 2001-99-99.
    """
    try:
        values: dict[str, Any] = yaml.SafeLoader("").construct_document(root)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise NotPlainError(f"not YAML: {' '.join(str(error).split())}") from error
    return values


def _check_tokens(text: str) -> None:
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
            raise NotPlainError(
                "anchors, aliases and tags are not supported", token.start_mark.line + 1
            )
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > DEEPEST_LEVEL:
            raise NotPlainError(f"more than {DEEPEST_LEVEL} levels", token.start_mark.line + 1)


def _misfits(node: yaml.Node, *, allows_references: bool) -> Iterator[NotPlainError]:
    """Yields an error for each node that is not a plain setting."""
    if isinstance(node, yaml.ScalarNode):
        line, is_number = node.start_mark.line + 1, node.tag in NUMBER_TAGS
        if is_number and len(node.value) > LONGEST_NUMBER:
            yield NotPlainError(f"a number of {len(node.value)} characters", line)
        elif is_number and AMBIGUOUS.match(node.value):
            yield NotPlainError(f"{node.value} is ambiguous: YAML reads it as another number", line)
        elif node.tag not in SCALARS:
            yield NotPlainError(f"{node.value} has another meaning in YAML; quote it", line)
        elif "${" in node.value and not allows_references:
            yield NotPlainError(f"{node.value}: references (${{...}}) are not resolved here", line)
    for child in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _misfits(child, allows_references=allows_references)
    seen: set[str] = set()
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode) or name.tag != WORD:
            yield NotPlainError("a key is not a string", line)
        elif name.value in seen:
            yield NotPlainError(f"{name.value} is set twice", line)
        else:
            seen.add(name.value)
        yield from _misfits(value, allows_references=allows_references)
