"""The places that CONTRIBUTING.md names for an addition are enough.

A copy of the package gets an addition of each kind, by edits of no other places. Then the laws of
the tests hold for the additions, and commands plan, train, report and export with them.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.places import ROOT, places
from toys.additions import ADDITIONS, Addition

TOYS = ROOT / "tests/toys"


def plant(addition: Addition, folder: Path) -> None:
    """Makes an addition to a copy of the package."""
    for file, changes in addition.edits.items():
        text = (folder / file).read_text()
        for before, after in changes.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        (folder / file).write_text(text)
    for file, content in addition.files.items():
        assert not (folder / file).exists(), file
        (folder / file).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else content.read_text()
        (folder / file).write_text(text)


def test_each_row_has_an_addition_and_each_addition_has_a_row():
    assert set(places()) == set(ADDITIONS)


@pytest.mark.parametrize("what", places())
def test_an_addition_touches_only_the_places_that_its_docstring_names(what):
    named = [place.partition(":")[0] for place in re.findall(r"`(.+?)`", places()[what])]
    for file in (*ADDITIONS[what].edits, *ADDITIONS[what].files):
        assert any(Path(file).is_relative_to(place) for place in named), file


def test_additions_obey_the_laws_of_what_is_there_and_commands_work_with_them(tmp_path):
    """One process runs all the laws with the copy, so that it loads torch once."""
    for name in ("rampcli", "recipes", "conf"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    for addition in ADDITIONS.values():
        plant(addition, tmp_path)
    variables = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    laws = [TOYS / "laws.py", ROOT / "tests/estimate/test_model_size.py"]
    selected = "laws or (counted_bytes and small_gpt and sgd)"
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rp"),
            *("--basetemp", tmp_path / "runs", "-k", selected, *laws),
        ],
        env=variables | {"PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "counted_bytes[small_gpt-sgd]" in done.stdout
