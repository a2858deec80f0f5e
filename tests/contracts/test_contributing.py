"""CONTRIBUTING.md names folders and definitions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = {"make docs"}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows() -> dict[str, list[str]]:
    """The places that each row of the table names."""
    cells = re.findall(r"^\| (.*?) \| (.*?) \|$", section("Where to change what"), re.MULTILINE)
    return {what: re.findall(r"`(.+?)`", where) for what, where in cells[1:]}


@pytest.mark.parametrize("what", rows())
def test_a_change_needs_at_most_three_places_and_they_exist(what):
    places = [place for place in rows()[what] if place not in COMMANDS]
    assert 1 <= len(places) <= 3
    for place in places:
        path, _, name = place.partition(":")
        assert (ROOT / path).exists(), place
        if name:
            definition = rf"^(class|def) {name}\b|^{name}\b.*="
            assert re.search(definition, (ROOT / path).read_text(), re.MULTILINE), place


def test_the_table_covers_the_extensions_that_the_program_is_built_for():
    said = " ".join(rows())
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
