"""Commands that the pages of the documentation show, with their output."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", flags=re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.(?:yaml|py))`[^`]*```(?:yaml|python)\n(.*?)```", flags=re.DOTALL)
PROGRAMS = re.compile(r"(?:[A-Z_]+=\S+ |nohup |\.venv/bin/)*(rampcli|python|cat|head|ls|mkdir) ")
SHELL = ("#", ">", "&", "|", "<")


@dataclass(frozen=True, slots=True)
class Example:
    """A command as a page shows it.

    Attributes:
        place: page and line.
        command: the line of a shell.
        shown: lines that the page shows below it.
        files: names and contents of the files that the page shows.
    """

    place: str
    command: str
    shown: tuple[str, ...]
    files: tuple[tuple[str, str], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Words after `rampcli`, up to what is for the shell; empty for other programs."""
        words = shlex.split(self.command)
        after = words[words.index("rampcli") + 1 :] if "rampcli" in words else []
        return tuple(takewhile(lambda word: word not in SHELL, after))

    @property
    def is_plain(self) -> bool:
        """True if the shell would only start rampcli with these words."""
        return shlex.split(self.command) == ["rampcli", *self.words]

    def write_files(self, folder: Path) -> None:
        """Writes the files of the page."""
        for name, content in self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")


def examples_of(page: Path) -> Iterator[Example]:
    """Yields the commands of a page, in order."""
    text = page.read_text(encoding="utf-8")
    files = tuple(FILE.findall(text))
    without_fences = re.sub(
        r"```.*?```", lambda fenced: "\n" * fenced[0].count("\n"), text, flags=re.DOTALL
    )
    for block in BLOCK.finditer(without_fences):
        first_line = without_fences.count("\n", 0, block.start()) + 1
        lines = [line[4:].rstrip().removeprefix("$ ") for line in block[0].splitlines()]
        starts = [number for number, line in enumerate(lines) if PROGRAMS.match(line)]
        for start, end in pairwise([*starts, len(lines)]):
            command, *below = lines[start:end]
            while command.endswith("\\") or command.count("'") % 2:
                command = f"{command.removesuffix(chr(92)).rstrip()} {below.pop(0).strip()}"
            place = f"{page.relative_to(ROOT)}:{first_line + start}"
            yield Example(place, command, tuple(line for line in below if line), files)


def differs(shown: Sequence[str], printed: Iterable[str]) -> str | None:
    """Returns how the output differs from the lines that are shown, or None.

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
