"""No files import each other in a circle, so each can be read before those that use it."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rampcli

PACKAGE = Path(rampcli.__file__).parent
KNOWN = {
    ("rampcli.settings.attributes", "rampcli.settings.config"),
    ("rampcli.settings.by_key", "rampcli.settings.config"),
    ("rampcli.settings.attributes", "rampcli.settings.by_key"),
    ("rampcli.settings.attributes", "rampcli.settings.unknown_keys"),
}
"""Imports within functions that close a circle: importer and imported. No others are allowed."""


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(statement: ast.stmt) -> set[str]:
    """Returns the modules of rampcli that a statement imports."""
    if isinstance(statement, ast.Import):
        names = {alias.name for alias in statement.names}
    elif isinstance(statement, ast.ImportFrom):
        names = {
            inside
            if (inside := f"{statement.module}.{alias.name}") in MODULES
            else statement.module
            for alias in statement.names
        }
    else:
        names = set()
    return names & MODULES.keys()


@cache
def imports(*, also_in_functions: bool) -> dict[str, set[str]]:
    """Returns what each module imports when it runs."""

    def within(node: ast.AST) -> set[str]:
        found = set()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return found
        for child in ast.iter_child_nodes(node):
            if also_in_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= imported(child) | within(child)
        return found

    return {name: within(ast.parse(path.read_text())) for name, path in MODULES.items()}


def without(left_out: set[tuple[str, str]]) -> dict[str, set[str]]:
    """Returns all imports but some, which are pairs of importer and imported."""
    return {
        name: {module for module in found if (name, module) not in left_out}
        for name, found in imports(also_in_functions=True).items()
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a circle, the first one also at the end, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_at_their_beginning():
    assert circle(imports(also_in_functions=False)) == []


def test_imports_within_functions_close_only_known_circles():
    assert circle(without(KNOWN)) == []


@pytest.mark.parametrize(("importer", "module"), sorted(KNOWN))
def test_a_known_circle_still_exists(importer, module):
    """Otherwise, it is to be removed from the list."""
    assert circle(without(KNOWN - {(importer, module)}))


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
