"""Declares the fields of the schema."""

from collections.abc import Iterable
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    doc: str,
    *,
    choices: Iterable[str] = (),
    unit: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Returns a field with its description and range.

    Args:
        default: value if neither conf/ nor a recipe sets one.
        doc: description for `rampcli explain` and the reference; it says what `null` means.
        choices: accepted values, where a table names them and not the type.
        unit: unit of the value, in words.
        at_least, at_most, above, below: accepted range.
    """
    about = {
        "doc": doc,
        "choices": tuple(choices),
        "unit": unit,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "below": below,
    }
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


def spelling() -> Any:
    """Returns a field that accepts another system's spelling of a setting."""
    return field(default=None)
