"""Reads JSON that somebody else may have written: within a size, and checked against the shape that the reader relies on.

A shape is a type (`str`, `bool`, `int`, `float`, `None`), `COUNT`, `POSITIVE`, `RATE`, a tuple of shapes of which one fits, a list with
the shape of each item, or a dictionary. A dictionary gives the shape of each field; `name?` need not be there, and `...` is the shape of
all other fields, which may otherwise be anything. `ANY` fits everything.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rampcli.errors import DamagedFileError
from rampcli.own_folder import read_file

MOST_BYTES = 64 * 2**20
MOST = 10**18
"""No count is larger, so that none overflows on the way."""
COUNT, POSITIVE = "a whole number from 0", "a whole number from 1"
RATE = "a number above 0"
ANY = "anything"
_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    None: "null",
}
_FITS: dict[Any, Callable[[Any], bool]] = {
    ANY: lambda _: True,
    None: lambda value: value is None,
    str: lambda value: type(value) is str,
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int and -MOST <= value <= MOST,
    COUNT: lambda value: type(value) is int and 0 <= value <= MOST,
    POSITIVE: lambda value: type(value) is int and 1 <= value <= MOST,
    float: lambda value: type(value) in (int, float) and -MOST <= value <= MOST,
    RATE: lambda value: type(value) in (int, float) and 0 < value <= MOST,
}
"""Whether a value that was JSON fits a shape that is not made of others. In Python, true is a number too, but not by its exact type."""


def read_json(path: Path, shape: Any, *, most_bytes: int = MOST_BYTES) -> Any:
    """Returns what a JSON file holds, checked against a shape.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: it cannot be read, is too large, is not JSON, or has another shape.
    """
    try:
        content = read_file(path, most_bytes=most_bytes)
    except (FileNotFoundError, NotADirectoryError) as error:  # the latter: a file above it
        raise FileNotFoundError(*error.args) from error
    except OSError as error:
        raise DamagedFileError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_json(content, shape, where=str(path))


def parse_json(content: bytes, shape: Any, *, where: str) -> Any:
    """Returns a JSON text as values, checked against a shape; `where` names it in an error.

    Raises:
        DamagedFileError: it is not JSON, or has another shape.
    """
    try:
        value = json.loads(
            content.decode(), parse_constant=_refuse_constant, object_pairs_hook=_without_repeats
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: also bytes that are not UTF-8, and integers of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedFileError(f"{where} is damaged: {reason}") from error
    check_shape(value, shape, where=where)
    return value


def check_shape(value: Any, shape: Any, *, where: str) -> None:
    """Check a value that was JSON.

    Raises:
        DamagedFileError: it has another shape; the message names the field.
    """
    if (misfit := _misfit(value, shape, "")) is not None:
        field, expected = misfit
        raise DamagedFileError(f"{where} is damaged: {field or 'it'} is not {expected}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a mapping. Readers disagree on which of two alike counts, so neither does."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is there twice")
    return fields


def _misfit(value: Any, shape: Any, field: str) -> tuple[str, str] | None:
    """Returns the first field that does not fit and what was expected there, or None if all fit."""
    if isinstance(shape, dict):
        return (
            _misfit_of_fields(value, shape, field)
            if isinstance(value, dict)
            else (field, "a mapping")
        )
    if isinstance(shape, tuple):
        misfits = [_misfit(value, one, field) for one in shape]
        return (
            None
            if None in misfits
            else next((misfit for misfit in misfits if misfit and misfit[0] != field), misfits[0])
        )
    if isinstance(shape, list):
        if not isinstance(value, list):
            return field, "a list"
        return next(
            (
                misfit
                for index, item in enumerate(value)
                if (misfit := _misfit(item, shape[0], f"{field}[{index}]"))
            ),
            None,
        )
    return None if _FITS[shape](value) else (field, _NAMES.get(shape, shape))


def _misfit_of_fields(
    value: dict[str, Any], shape: dict[Any, Any], field: str
) -> tuple[str, str] | None:
    before = f"{field}." if field else ""
    for word, inner in shape.items():
        if word is ...:
            continue
        name = word.removesuffix("?")
        if name in value:
            if misfit := _misfit(value[name], inner, before + name):
                return misfit
        elif name == word:
            return field, f"complete: it has no {name}"
    if ... not in shape:
        return None
    others = (name for name in value if name not in shape and f"{name}?" not in shape)
    return next(
        (misfit for name in others if (misfit := _misfit(value[name], shape[...], before + name))),
        None,
    )
