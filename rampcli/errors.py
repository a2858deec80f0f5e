"""Errors that a user can cause, and their exit codes.

Each of them is a `RampcliError`, which is shown as one message and never as a traceback.
"""

import errno
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
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


def shown(value: Any) -> str:
    """Returns the value of a setting as it is typed on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{shown(item)}' for name, item in value.items())}}}"
    return f"[{','.join(map(shown, value))}]" if isinstance(value, list) else str(value)


def typeable(word: str) -> str:
    """Returns a word quoted for a shell."""
    return (
        f'"{word}"'
        if "'" in word and not re.search(r"""["$`!]|\\(?!')""", word)
        else shlex.quote(word)
    )


@dataclass(frozen=True, slots=True)
class Assignments:
    """Settings that would work, as words of a command line.

    Attributes:
        values: by key; each of a key's values would work. Several keys are set together.
        note: text that follows them, such as " or more".
        is_example: whether they only show a valid value. A value of the run's own is better.
    """

    values: Mapping[str, tuple[Any, ...]]
    note: str = ""
    is_example: bool = False

    def renamed(self, names: Mapping[str, str]) -> "Assignments":
        """Returns the same settings with other names for some keys."""
        return replace(self, values={names.get(key, key): v for key, v in self.values.items()})

    def __str__(self) -> str:
        words = []
        for key, (value, *others) in self.values.items():
            texts = (f"{key}={shown(value)}", *map(shown, others))
            words.append(" or ".join(map(typeable, texts)))
        return " ".join(words) + self.note


Remedy = str | Assignments
"""One way out of an error: settings, or prose."""


def set_to(key: str, *values: Any, note: str = "") -> Assignments:
    """Returns the remedy that sets a key to one of some values: `KEY=80 or 120`."""
    return Assignments({key: values}, note)


def example_of(key: str, value: Any, *, note: str = "") -> Assignments:
    """Returns a remedy that shows a valid value of a key."""
    return Assignments({key: (value,)}, note, is_example=True)


def set_together(values: Mapping[str, Any], *, note: str = "") -> Assignments:
    """Returns the remedy that sets several keys, each to its value: `KEY=80 OTHER=null`."""
    return Assignments({key: (value,) for key, value in values.items()}, note)


class RampcliError(Exception):
    """An error with a message for the user.

    Attributes:
        message: what is wrong, in one sentence.
        keys: the config keys that the error is about, most important first.
        remedies: what would work, the best first. Each is enough. `remedy` is their text.
        set_by: what set each of `keys`, with its place: `seed=-1 (command line)`. `rampcli.config`
            fills it in for errors raised by code that does not know.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        keys: Sequence[str] = (),
        remedy: Remedy | Sequence[Remedy] | None = None,
        set_by: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = printable(message)
        self.keys = tuple(keys)
        self.remedies: tuple[Remedy, ...] = (
            (remedy,) if isinstance(remedy, Remedy) else tuple(remedy or ())
        )
        self.set_by = tuple(set_by)

    @property
    def remedy(self) -> str | None:
        """The remedies as text, or None if there are none."""
        return printable(", or ".join(map(str, self.remedies))) or None

    def add_context(self, context: str) -> None:
        """Begins the message with what it is about, such as "stage 3"."""
        self.message = printable(f"{context}: {self.message}")

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
            lines.append(f"       set by: {', '.join(map(printable, self.set_by))}")
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
    if isinstance(error, OSError) and error.strerror:  # without the number that str() begins with
        place = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
        return printable(f"{error.strerror}{place}")
    return printable(str(error) or type(error).__name__)


def as_rampcli_error(error: OSError) -> RampcliError:
    """Returns an error of the operating system as one that a user understands."""
    place = "a file" if error.filename is None else os.fsdecode(error.filename)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RampcliError(
            f"no space left on the disk of {place}", remedy="free space there, or another path"
        )
    if error.errno == errno.EROFS:
        return RampcliError(
            f"cannot write {place}: its disk is mounted read-only",
            remedy="a path on another disk",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return RampcliError(
            f"this user has no permission for {place}", remedy="a path in a folder of your own"
        )
    return RampcliError(reason_of(error))


def as_json(error: RampcliError) -> str:
    """Returns an error, or all that it collects, as a line of JSON: `{"errors": [...]}`."""
    errors = error.errors if isinstance(error, UsageErrors) else (error,)
    return json.dumps({"errors": [one.facts() for one in errors]})


class ErrorReport:
    """Collects usage errors, so that a user sees all of them at once."""

    def __init__(self, errors: Iterable[UsageError] = ()) -> None:
        self.errors = [*errors]

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


@contextmanager
def reading(
    path: Path | str, *, kind: type[RampcliError] = UsageError, remedy: Remedy | None = None
) -> Iterator[None]:
    """Turns an OSError into an error that names the file which cannot be read, and the reason.

    Args:
        path: named if the OSError does not name a file itself.
    """
    try:
        yield
    except OSError as error:
        message = f"cannot read {error.filename or path}: {error.strerror or error}"
        raise kind(message, remedy=remedy) from error


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
