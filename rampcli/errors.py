"""What can go wrong, and the exit code that says so.

Every error that a user can cause is a `RampcliError`: it is shown as one message, never as a traceback.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LONGEST_SHOWN = 300


def visible(text: str, *, keeps: str = "") -> str:
    r"""Returns a text in which a terminal finds nothing to obey: control characters and bidi marks become `\x1b`, `\u202e`.

    Everything that is printed and came from a file passes through here. Characters of `keeps` stay, newlines for example.
    """
    return (
        text
        if text.isprintable()
        else "".join(one if one.isprintable() or one in keeps else ascii(one)[1:-1] for one in text)
    )


def printable(text: str) -> str:
    """Returns a text as one visible line, with the middle of a long one left out."""
    line = visible(text)
    return (
        line
        if len(line) <= LONGEST_SHOWN
        else f"{line[: LONGEST_SHOWN * 2 // 3]} ... {line[-LONGEST_SHOWN // 4 :]}"
    )


class RampcliError(Exception):
    """An error with a message for the user.

    Attributes:
        message: what is wrong, in one sentence.
        keys: the config keys that it is about, most important first.
        remedy: what would work, or None.
        set_by: where the values of `keys` came from; filled in by `rampcli.config`, where whoever raises does not know.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        keys: Sequence[str] = (),
        remedy: str | None = None,
        set_by: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = printable(message)
        self.keys = tuple(keys)
        self.remedy = None if remedy is None else printable(remedy)
        self.set_by = tuple(set_by)

    def facts(self) -> dict[str, Any]:
        """What state.json says of it."""
        return {
            "message": self.message,
            "set_by": self.set_by,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
        }

    def __str__(self) -> str:
        lines = [f"error: {self.message}"]
        if self.set_by:
            lines.append(f"       set by: {' · '.join(map(printable, self.set_by))}")
        if self.remedy:
            lines.append(f"       try:    {self.remedy}")
        return "\n".join(lines)


class UsageError(RampcliError):
    """Bad usage, configuration or batch arithmetic."""

    exit_code = 2


class UsageErrors(UsageError):
    """Several of them, shown one below the other."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__(
            "; ".join(error.message for error in errors),
            keys=[key for error in errors for key in error.keys],
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def reason_of(error: Exception) -> str:
    """Returns why an error was raised, as one visible line."""
    return (
        error.message
        if isinstance(error, RampcliError)
        else printable(str(error) or type(error).__name__)
    )


class Report:
    """Collects errors, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.errors: list[UsageError] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note a usage error of the block and go on after it."""
        try:
            yield
        except UsageErrors as error:
            self.errors += error.errors
        except UsageError as error:
            self.errors.append(error)

    def close(self) -> None:
        """Raise what was noted.

        Raises:
            UsageError: the only one, or a `UsageErrors` of all.
        """
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else UsageErrors(self.errors)


class ForeignCheckpointError(RampcliError):
    """The run directory's checkpoint belongs to another configuration."""

    exit_code = 4


class NoCheckpointError(RampcliError):
    """No usable checkpoint where one was demanded."""

    exit_code = 5


class DamagedFileError(RampcliError):
    """A file that rampcli reads is not what was written: cut, changed, or never of its kind."""

    exit_code = 5


EXIT_INTERRUPTED = 75
"""Interrupted after a save: the same command goes on (sysexits.h, EX_TEMPFAIL)."""

EXIT_CTRL_C = 130
"""Interrupted by Ctrl-C (128 + SIGINT), as shells count it."""

EXIT_TERMINATED = 143
"""Ended by SIGTERM (128 + SIGTERM), where there was nothing to save."""
