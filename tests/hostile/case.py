"""A hostile case: what is planted, what is typed, and how that may end."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hostile.world import Plant


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One row of a table.

    Attributes:
        name: what is hostile about it.
        plants: what is done to the world before.
        command: the words after `rampcli`.
        codes: the exit codes that are right.
        uses: the materials that are there: a run, a corpus, ...
        writes: the paths that the command may write, each with all below it. Nothing else may change, here or outside.
        says: what has to be in the output.
        holds_lock: whether this process holds the run's lock meanwhile.
    """

    name: str
    plants: tuple[Plant, ...] = ()
    command: tuple[str, ...]
    codes: tuple[int, ...]
    uses: tuple[str, ...] = ("run", "corpus")
    writes: tuple[str, ...] = ()
    says: str = ""
    holds_lock: bool = False

    @property
    def id(self) -> str:
        """Names the test."""
        return self.name.encode("ascii", "backslashreplace").decode().replace("\\", "")


def case(
    name: str, command: str, code: int | Sequence[int], *plants: Plant, **facts: object
) -> Case:
    """A row, with its command as it is typed."""
    codes = (code,) if isinstance(code, int) else tuple(code)
    return Case(name=name, command=tuple(shlex.split(command)), codes=codes, plants=plants, **facts)  # type: ignore[arg-type]
