"""The table of CONTRIBUTING.md that says where to add what, read from docstrings.

A definition that is extended says so in its docstring: "To add a decay style: an entry here." In
the table, "here" is the place of the definition. Comments of files in conf/ may say it, too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = re.compile(r"\bTo add ([^:.]+): (.+?)\.(?=\n\n|\n*$)", re.DOTALL)
HEAD = "| to add | write |\n|---|---|\n"


def places() -> dict[str, str]:
    """Returns what can be added, and where, in alphabetical order. Places are in backquotes."""
    found = {}
    for place, text in _texts():
        for what, how in SENTENCE.findall(text):
            where = re.sub(r"\bhere\b", f"in `{place}`", " ".join(how.split()), count=1)
            assert what not in found, f"two docstrings say how to add {what}"
            found[what] = where
    return dict(
        sorted(found.items(), key=lambda row: row[0].removeprefix("an ").removeprefix("a "))
    )


def places_table() -> str:
    """Returns the table as Markdown."""
    return HEAD + "".join(f"| {what} | {where} |\n" for what, where in places().items())


def _texts() -> Iterator[tuple[str, str]]:
    """Yields the places of definitions and files, and what they say about themselves."""
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        comments = [line[1:].strip() for line in path.read_text().splitlines() if line[:1] == "#"]
        yield str(path.relative_to(ROOT)), "\n".join(comments)
    for path in sorted((ROOT / "rampcli").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "To add " in source:
            file = path.relative_to(ROOT)
            module = ast.parse(source)
            yield str(file), ast.get_docstring(module) or ""
            for name, text in _docstrings(module):
                yield f"{file}:{name}", text


def _docstrings(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names and docstrings of the classes, functions and values of a module."""
    for node, following in zip(module.body, [*module.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(following.value, ast.Constant):
                yield ast.unparse(target), str(following.value.value)
