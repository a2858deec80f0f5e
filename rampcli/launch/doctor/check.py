"""The result of one check of `rampcli doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Result of a check."""

    ok = "ok"
    warning = "warning"
    failure = "failure"
    not_needed = "not needed"
    not_run = "not run"


STATUS_STYLES = {
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
        details: further lines for the report of `--gpu`.
        seconds: how long a check of `--gpu` took.
    """

    name: str
    status: Status
    finding: str
    remedy: str | None = None
    details: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that every check has."""
        return {key: getattr(self, key) for key in ("name", "status", "finding", "remedy")}


class NotOk(Exception):
    """Raised by a check of `--gpu` that ends with another status than `ok` or `failure`."""

    def __init__(self, status: Status, finding: str, remedy: str | None = None) -> None:
        super().__init__(finding)
        self.status = status
        self.remedy = remedy


def format_bytes(size_bytes: float) -> str:
    """Returns a size in GB or MB."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
