"""Renders docs/reference/bad-input.md: one table per topic, one line per wrong input."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.cli.bad_inputs import BASE, BadInput
from tests.error_text import as_text

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bad-input.md"
LONGEST_TYPED = 120
LONGEST_ANSWER = 400
TABLE = "| typed | error | set by | try |\n|---|---|---|---|\n"
BUNDLED_LINE = re.compile(r"([\w/]+\.(?:yaml|py)):\d+")
"""A line of a bundled file, whose number would change the page with each edit of that file."""
INTRODUCTION = """# Bad input

Each of these {count} inputs is refused with exit code 2 and one message per error. Nothing is
written. A message says what is wrong, where the value was set, and what to try. The tables leave
out line numbers of bundled files. Words without a command were typed after `rampcli {base}`.
Files that an input reads are shown below its words, with `\\n` for a new line.
"""


def page(topics: Mapping[str, Sequence[str]]) -> str:
    """Returns the page without its first comment; `topics` holds the lines of each topic."""
    count = sum(map(len, topics.values()))
    tables = (f"\n## {topic}\n\n{TABLE}{''.join(lines)}" for topic, lines in topics.items())
    return INTRODUCTION.format(count=count, base=shlex.join(BASE)) + "".join(tables)


def line_of(wrong: BadInput, stderr: str) -> str:
    """Returns the table's line for an input and what the command printed on standard error."""
    stderr = as_text(stderr)
    own = wrong.words[len(BASE) :]
    words = own if wrong.words[: len(BASE)] == BASE and own else ("rampcli", *wrong.words)
    typed = [_code(shlex.join(words), LONGEST_TYPED)]
    for name, content in wrong.files.items():
        held = (
            f" has {len(content)} bytes"
            if isinstance(content, bytes) or not content
            else f": {_code(content, LONGEST_TYPED)}"
        )
        typed.append(f"{_code(name, LONGEST_TYPED)}{held}")
    set_by = [
        BUNDLED_LINE.sub(lambda place: place[0] if place[1] in wrong.files else place[1], line)
        for line in _after("set by: ", stderr)
    ]
    cells = [typed, _after("error: ", stderr), set_by, _after("try: ", stderr)]
    return f"| {' | '.join(' <br> '.join(cell) for cell in cells)} |\n"


def answers(text: str) -> Iterator[list[tuple[str, str]]]:
    """Yields, for each line of the page, its errors and what each of them offers to try."""
    for topic in text.split("\n## ")[1:]:
        for line in topic.partition(TABLE)[2].splitlines():
            _, errors, _, remedies = re.split(r"(?<!\\) \| ", line[2:-2])
            yield list(zip(_texts(errors), _texts(remedies), strict=True))


def _texts(cell: str) -> list[str]:
    codes = (re.fullmatch(r"(`+)( ?)(.*?)\2\1", code) for code in cell.split(" <br> "))
    return [code[3].replace(r"\|", "|") for code in codes if code]


def _after(label: str, stderr: str) -> list[str]:
    """Returns the text of each line with a label, which Typer begins with a capital letter."""
    lines = [line.strip() for line in stderr.splitlines()]
    return [
        _code(line[len(label) :].strip(), LONGEST_ANSWER)
        for line in lines
        if line.lower().startswith(label)
    ]


def _code(text: str, longest: int) -> str:
    """Returns text as Markdown code in a table: visible, cut, with `|` escaped."""
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    shown = shown if len(shown) <= longest else f"{shown[:longest]}..."
    fence = "``" if "`" in shown else "`"
    padding = " " if "`" in shown else ""
    return f"{fence}{padding}{shown}{padding}{fence}".replace("|", r"\|")
