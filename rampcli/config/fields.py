"""How the schema declares its fields."""

from dataclasses import field
from typing import Any


def setting(
    default: Any,
    doc: str,
    *,
    unit: str | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field with what people want to know of it.

    Args:
        default: where neither conf/ nor a recipe says otherwise.
        doc: what it is; `null` in it means the absence of a value.
        unit: of the value, in words.
        at_least, at_most, above, below: the range that is accepted.
    """
    about = {
        "doc": doc,
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
    """A field that takes another system's word for a setting."""
    return field(default=None)
