"""The result of one check of `rampcli doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Result of a check."""

    ok = "ok"
    warning = "warning"
    failure = "failure"
    not_needed = "not needed"
    not_run = "not run"


STYLES = {
    Status.ok: "green",
    Status.warning: "yellow",
    Status.failure: "bold red",
    Status.not_needed: "dim",
    Status.not_run: "yellow",
}
"""How a terminal shows each result."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check of one part of the machine.

    Attributes:
        name: part of the machine.
        status: whether a launch can use it.
        finding: the result as text, with figures.
        remedy: what to do about a warning or failure; None otherwise.
    """

    name: str
    status: Status
    finding: str
    remedy: str | None = None


def format_bytes(size_bytes: float) -> str:
    """Returns a size in GB or MB."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
