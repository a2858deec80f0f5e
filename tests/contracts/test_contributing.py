"""CONTRIBUTING.md names folders and definitions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BUILT = {"site"}
"""Folders that commands make."""


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("place", sorted(set(re.findall(r"`(\w+/[\w./]*(?::\w+)?)`", TEXT))))
def test_a_place_exists(place):
    path, _, name = place.partition(":")
    found = [root / path for root in (ROOT, ROOT / "rampcli") if (root / path).exists()]
    assert found or path.split("/")[0] in BUILT
    if name:
        definition = rf"^(class|def) {name}\b|^{name}\b.*="
        assert re.search(definition, found[0].read_text(), re.MULTILINE)


def test_the_tables_cover_the_extensions_that_the_program_is_built_for():
    cells = re.findall(r"^\| (.*?) \|", section("Where to change what"), re.MULTILINE)
    said = " ".join(cells)
    for extension in (
        *("decay style", "optimiser", "model family", "tracker", "launcher", "data source"),
        *("ramp semantics", "node policy", "checkpoint", "command"),
    ):
        assert extension in said


def test_the_tree_names_every_folder_of_the_package_and_no_other():
    tree = section("The house").split("\n\n")[0]
    package = tree.partition("rampcli/")[2].partition("\n    conf/")[0]
    named = re.findall(r"^      (\S+)", package, re.MULTILINE)
    assert [name for name in named if not (ROOT / "rampcli" / name).exists()] == []
    folders = {f"{path.parent.name}/" for path in (ROOT / "rampcli").glob("*/__init__.py")}
    assert {name for name in named if name.endswith("/")} == folders
