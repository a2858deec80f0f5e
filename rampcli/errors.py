"""Errors that a user can cause, and their exit codes.

Each of them is a `RampcliError`, which is shown as one message and never as a traceback.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LONGEST_SHOWN = 300
"""Characters of a message. The middle of a longer one is left out."""


def visible(text: str, *, keeps: str = "") -> str:
    r"""Returns the text with control characters and bidi marks written out, as `\x1b` or `\u202e`.

    Everything that comes from a file passes through here before it is printed, so that no file can
    control the terminal. Characters in `keeps`, such as newlines, stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keeps else ascii(one)[1:-1] for one in text)


def printable(text: str) -> str:
    """Returns the text as one visible line of at most `LONGEST_SHOWN` characters."""
    line = visible(text)
    if len(line) <= LONGEST_SHOWN:
        return line
    return f"{line[: LONGEST_SHOWN * 2 // 3]} ... {line[-LONGEST_SHOWN // 4 :]}"


class RampcliError(Exception):
    """An error with a message for the user.

    Attributes:
        message: what is wrong, in one sentence.
        keys: the config keys that the error is about, most important first.
        remedy: what would work, or None.
        set_by: where the values of `keys` were set. `rampcli.config` fills it in for errors raised
            by code that does not know.
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
        """Returns the fields of `state.json` that describe the error."""
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
    """Several usage errors, printed one below the other."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__(
            "; ".join(error.message for error in errors),
            keys=[key for error in errors for key in error.keys],
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def reason_of(error: Exception) -> str:
    """Returns the message of an error as one visible line, or its type if it has no message."""
    if isinstance(error, RampcliError):
        return error.message
    return printable(str(error) or type(error).__name__)


class Report:
    """Collects usage errors, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self.errors: list[UsageError] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Collects a usage error that the body of the `with` statement raises."""
        try:
            yield
        except UsageErrors as error:
            self.errors += error.errors
        except UsageError as error:
            self.errors.append(error)

    def close(self) -> None:
        """Raises the collected errors.

        Raises:
            UsageError: the error, if there is one; a `UsageErrors`, if there are several.
        """
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else UsageErrors(self.errors)


@contextmanager
def naming_setting(key: str) -> Iterator[None]:
    """Adds a setting to a UsageError that does not name any."""
    try:
        yield
    except UsageError as error:
        error.keys = error.keys or (key,)
        raise


class OutOfMemoryError(RampcliError):
    """A rank needs more memory than it can have."""

    def facts(self) -> dict[str, Any]:
        """Returns the same fields, marked so that readers of state.json know this error."""
        return super().facts() | {"out_of_memory": True}


class ForeignCheckpointError(RampcliError):
    """The run directory's checkpoint belongs to another configuration."""

    exit_code = 4


class NoCheckpointError(RampcliError):
    """A checkpoint is needed, and no usable one was found."""

    exit_code = 5


class DamagedFileError(RampcliError):
    """A file is truncated, changed, or not of the expected kind."""

    exit_code = 5


EXIT_INTERRUPTED = 75
"""Interrupted after a save: the same command resumes (EX_TEMPFAIL in sysexits.h)."""

EXIT_CTRL_C = 130
"""Interrupted by Ctrl-C: 128 + SIGINT, as in shells."""

EXIT_TERMINATED = 143
"""Ended by SIGTERM with nothing to save: 128 + SIGTERM."""
