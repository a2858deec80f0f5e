"""Laws that every command keeps, whatever its input."""

import re
import unicodedata
from collections.abc import Collection
from typing import Any

from error_text import as_text
from hostile.calling import CPU_LIMIT_S, Ended

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MESSAGE = re.compile(r"(error|warning|note): \S.*|       (set by:|try:   ) \S.*")
SAYS_WHY = frozenset({2, 4, 5})
LONGEST_LINE = 1500


def broken_laws(ended: Ended, *, codes: Collection[int]) -> list[str]:
    """Describes the laws that a command broke."""
    broken = (
        []
        if ended.code in codes
        else [f"exit code {ended.code}, expected {' or '.join(map(str, sorted(codes)))}"]
    )
    if ended.cpu_s > CPU_LIMIT_S:
        broken.append(f"took {ended.cpu_s:.0f} s of a processor")
    if "Traceback" in ended.stdout + ended.stderr:
        broken.append("a traceback")
    if shown := sorted(
        {character for character in ended.stdout + ended.stderr if obeyed(character)}
    ):
        broken.append(f"printed {''.join(shown)!a}")
    if ended.code in SAYS_WHY and not is_one_message(ended.stderr):
        broken.append(f"not one message: {ended.stderr[:300]!r}")
    if ended.signalled:
        broken.append(f"sent a signal to {ended.signalled}")
    return broken


def obeyed(character: str) -> bool:
    """Returns whether a terminal obeys a character instead of showing it."""
    return character in BIDI or (
        unicodedata.category(character) == "Cc" and character not in "\n\t"
    )


def is_one_message(stderr: str) -> bool:
    """Returns whether a message, or several, is all that was printed, as text or as JSON."""
    lines = as_text(stderr).splitlines()
    if max(map(len, lines), default=0) > LONGEST_LINE:
        return False
    return all(MESSAGE.fullmatch(line) for line in lines) and any(
        line.startswith("error: ") for line in lines
    )


def changes(
    before: dict[str, tuple[Any, ...]],
    after: dict[str, tuple[Any, ...]],
    *,
    writes: Collection[str],
) -> list[str]:
    """Returns the paths that a command changed, created or removed without permission.

    Args:
        before: a snapshot of the folder.
        after: a later one.
        writes: paths that the command may write, each with everything below it.
    """
    different = [
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    ]

    def verb(name: str) -> str:
        if name not in before:
            return "made"
        return "changed" if name in after else "removed"

    return sorted(
        f"{verb(name)} {name}"
        for name in different
        if not any(name == allowed or name.startswith(f"{allowed}/") for allowed in writes)
    )
