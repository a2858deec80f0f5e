"""A hostile case: planted files, the command line, and the accepted exit codes."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hostile.world import Plant


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A row of a table of hostile cases.

    Attributes:
        name: what is hostile about it.
        plants: changes to the world before the command.
        command: the words after `rampcli`.
        codes: the exit codes that are right.
        uses: materials of the world: a run, a corpus, ...
        writes: paths that the command may write, each with everything below it.
        says: a part of the output.
        holds_lock: True if this process holds the run's lock meanwhile.
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
    """Returns a row. `command` is one line, as typed in a shell."""
    codes = (code,) if isinstance(code, int) else tuple(code)
    return Case(name=name, command=tuple(shlex.split(command)), codes=codes, plants=plants, **facts)  # type: ignore[arg-type]


def each(
    name: str,
    command: str,
    code: int | Sequence[int],
    plants: Mapping[str, Plant],
    *,
    of: Sequence[str] | None = None,
    **facts: object,
) -> list[Case]:
    """Returns a row for each plant, or for those named `of`; `{}` in the name is its name."""
    return [
        case(name.format(kind), command, code, plants[kind], **facts)
        for kind in (plants if of is None else of)
    ]
