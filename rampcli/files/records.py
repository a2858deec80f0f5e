"""Reads JSON from untrusted files, limited in size and checked against an expected shape.

A shape is one of:

* a type: `str`, `bool`, `int`, `float` or `None`;
* `COUNT`, `POSITIVE`, `RATE`, `TIME` or `ANY`;
* a tuple of shapes, one of which must fit;
* a list that holds the shape of each item;
* a dictionary from field names to shapes. A field `name?` is optional. `...` gives the shape of all
  other fields; without it they may hold anything.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rampcli.errors import DamagedFileError
from rampcli.files.guarded_folder import read_content

MOST_JSON_BYTES = 64 * 2**20
MOST = 10**18
"""Largest number that is accepted, so that products and sums of counts do not overflow."""
COUNT, POSITIVE = "a whole number, 0 or more", "a whole number, 1 or more"
RATE = "a number above 0"
TIME = "a time in seconds since 1970"
LATEST_TIME = 2.5e11
"""End of the years that Python's dates have, roughly."""
ANY = "anything"
_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number from -10^18 to 10^18",
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
    TIME: lambda value: type(value) in (int, float) and 0 <= value <= LATEST_TIME,
}
"""Tests of the shapes that are not made of others.

They compare exact types, because Python counts True as an integer.
"""


def read_json(path: Path, shape: Any, *, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Returns the content of a JSON file, checked against a shape.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFileError: the file cannot be read, is too large, is not JSON, or has another shape.
    """
    try:
        content = read_content(path, most_bytes=most_bytes)
    except (FileNotFoundError, NotADirectoryError) as error:  # the latter if a parent is a file
        raise FileNotFoundError(*error.args) from error
    except OSError as error:
        raise DamagedFileError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_json(content, shape, where=str(path))


def parse_json(content: bytes, shape: Any, *, where: str) -> Any:
    """Returns the values of a JSON text, checked against a shape; `where` names it in errors.

    Raises:
        DamagedFileError: the text is not JSON or has another shape.
    """
    try:
        value = parse_unshaped(content)
    except ValueError as error:
        raise DamagedFileError(f"{where} is damaged: {error}") from error
    check_shape(value, shape, where=where)
    return value


def parse_unshaped(content: bytes) -> Any:
    """Returns the values of a JSON text in UTF-8.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has a repeated field.
    """
    try:
        return _DECODER.decode(content.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_shape(value: Any, shape: Any, *, where: str) -> None:
    """Checks a value read from JSON against a shape.

    Raises:
        DamagedFileError: the value has another shape; the message names the field.
    """
    if (misfit := _misfit(value, shape, "")) is not None:
        field, problem = misfit
        raise DamagedFileError(f"{where} is damaged: {field or 'it'} {problem}")


def is_unicode(text: str) -> bool:
    """Returns False if a text has half of a surrogate pair, which JSON can express."""
    return re.search("[\ud800-\udfff]", text) is None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a mapping.

    A repeated field is an error, because JSON readers disagree on which one counts.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name} appears twice")
            seen.add(name)
    return fields


def _finite(text: str) -> float:
    """Returns a number with a fraction or an exponent, unless a float cannot hold it."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


_DECODER = json.JSONDecoder(
    parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats
)
"""Also refuses integers of thousands of digits."""


def _misfit(value: Any, shape: Any, field: str) -> tuple[str, str] | None:
    """Returns the first field that does not fit and its problem, or None if all fit."""
    if isinstance(shape, dict):
        return _misfit_of_mapping(value, shape, field)
    if isinstance(shape, list):
        return _misfit_of_list(value, shape[0], field)
    if isinstance(shape, tuple):
        misfits = [_misfit(value, one, field) for one in shape]
        if None in misfits:
            return None
        # A problem inside the value says more than that the whole value does not fit.
        inner = (misfit for misfit in misfits if misfit and misfit[0] != field)
        return next(inner, misfits[0])
    return None if _FITS[shape](value) else (field, f"is not {_NAMES.get(shape, shape)}")


def _misfit_of_list(value: Any, shape: Any, field: str) -> tuple[str, str] | None:
    if not isinstance(value, list):
        return field, "is not a list"
    misfits = (_misfit(item, shape, f"{field}[{index}]") for index, item in enumerate(value))
    return next((misfit for misfit in misfits if misfit), None)


def _misfit_of_mapping(value: Any, shape: dict[Any, Any], field: str) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return field, "is not a mapping"
    prefix = f"{field}." if field else ""
    for word, inner in shape.items():
        if word is ...:
            continue
        name = word.removesuffix("?")
        if name in value:
            if misfit := _misfit(value[name], inner, prefix + name):
                return misfit
        elif name == word:
            return field, f"has no {name}"
    if ... not in shape:
        return None
    others = (name for name in value if name not in shape and f"{name}?" not in shape)
    misfits = (_misfit(value[name], shape[...], prefix + name) for name in others)
    return next((misfit for misfit in misfits if misfit), None)
