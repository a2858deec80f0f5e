"""No files import each other in a circle, so each can be read before those that use it."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rampcli

PACKAGE = Path(rampcli.__file__).parent


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


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a circle, the first one also at the end, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("also_in_functions", [False, True])
def test_no_files_import_each_other_in_a_circle(also_in_functions):
    assert circle(imports(also_in_functions=also_in_functions)) == []


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
