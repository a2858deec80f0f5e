"""Runs every command of the pages that does not train and compares its output with the page."""

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from rampcli.cli import console

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.stem not in ("bad-input", "config")
    ),
]
WIDTHS = (110, 130)
"""Terminals that the pages show."""
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", flags=re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.yaml)`[^`]*```yaml\n(.*?)```", flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A command as a page shows it, with the lines below it, and the files of the page."""

    place: str
    words: tuple[str, ...]
    shown: tuple[str, ...]
    files: tuple[tuple[str, str], ...]


def examples_of(page):
    text = page.read_text(encoding="utf-8")
    files = tuple(FILE.findall(text))
    without_fences = re.sub(
        r"```.*?```", lambda fenced: "\n" * fenced[0].count("\n"), text, flags=re.DOTALL
    )
    for block in BLOCK.finditer(without_fences):
        first_line = without_fences.count("\n", 0, block.start()) + 1
        lines = [line[4:].rstrip().removeprefix("$ ") for line in block[0].splitlines()]
        starts = [number for number, line in enumerate(lines) if line.startswith("rampcli ")]
        for start, end in pairwise([*starts, len(lines)]):
            command, *below = lines[start:end]
            while command.endswith("\\") or command.count("'") % 2:
                command = f"{command.removesuffix(chr(92)).rstrip()} {below.pop(0).strip()}"
            place = f"{page.relative_to(ROOT)}:{first_line + start}"
            yield Example(
                place, tuple(shlex.split(command)[1:]), tuple(line for line in below if line), files
            )


def runs_here(example):
    options = {"--dry-run", "--cfg", "--estimate", "--dialects"} & {*example.words}
    trains = {"pretrain", "rl", "sweep", "tune"} & {*example.words} and not options
    elsewhere = any(
        re.search(r"[A-Z]{4,}|\.\.\.|^(runs/|name=|completion|import|status|serve|data$)", word)
        for word in example.words
    )
    return not elsewhere and (
        not trains or any(line.startswith("error: ") for line in example.shown)
    )


EXAMPLES = [example for page in PAGES for example in examples_of(page) if runs_here(example)]


def differs(shown, printed):
    """Returns the first line that is shown and not printed, or None.

    `...` stands for any lines, and at the end of a line for the rest of it.
    """
    left = iter(line.rstrip() for line in printed if line.strip())
    skips = False
    for line in shown:
        if line.strip() == "...":
            skips = True
            continue
        begin = line.removesuffix("...").rstrip()
        for candidate in left:
            if candidate == line or (line.endswith("...") and candidate.startswith(begin)):
                break
            if not skips:
                return f"{line!r} is shown and {candidate!r} printed"
        else:
            return f"{line!r} is shown and not printed"
        skips = False
    return None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_the_output_shown_on_a_page_is_what_the_command_prints(
    example, rampcli, tmp_path, monkeypatch
):
    for name, content in example.files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    differences = []
    for width in WIDTHS:
        monkeypatch.setattr(console, "PIPE_WIDTH", width)
        ended = rampcli(*example.words)
        differences.append(differs(example.shown, (ended.stdout + ended.stderr).splitlines()))
        if differences[-1] is None:
            break
    assert None in differences, differences[0]
    assert ended.exit_code == (
        2 if any(line.startswith("error: ") for line in example.shown) else 0
    )


def test_enough_commands_of_the_pages_are_run():
    assert len(EXAMPLES) > 60
