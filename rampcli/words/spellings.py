"""Spellings: other systems' keys that mean exactly one of ours.

A spelling is resolved once, into the canonical key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rampcli.errors import Report, UsageError
from rampcli.words import bridge, maxtext, nemo, rl

SPELLINGS: dict[str, str] = nemo.SPELLINGS | bridge.SPELLINGS | maxtext.SPELLINGS | rl.SPELLINGS
"""Canonical key by spelling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A value and the layer that set it. A higher layer is closer to the user and wins."""

    value: Any
    layer: int


def fold_spellings(given: Mapping[str, Given]) -> dict[str, str]:
    """Returns the spelling whose value wins, by canonical key.

    Canonical keys whose own value wins are left out.

    Args:
        given: values by canonical key and by spelling; the value of an unused spelling is None.

    Raises:
        UsageError: spellings of one key have different values on the same layer. The message names
            both.
    """
    report = Report()
    winners: dict[str, str] = {}
    for canonical in dict.fromkeys(SPELLINGS.values()):
        used = [
            key
            for key, target in SPELLINGS.items()
            if target == canonical and given[key].value is not None
        ]
        highest = max(given[key].layer for key in (canonical, *used))
        rivals = [key for key in (canonical, *used) if given[key].layer == highest]
        for one, other in pairwise(rivals):
            with report.noting():
                check_same(other, given[other].value, one, given[one].value)
        if canonical not in rivals:
            winners[canonical] = rivals[0]
    report.close()
    return winners


def check_same(one: str, value: Any, other: str, other_value: Any) -> None:
    """Checks that two spellings of one setting have the same value.

    Raises:
        UsageError: they differ.
    """
    if value != other_value:
        message = (
            f"{one}={value} and {other}={other_value} are two spellings of one setting and differ"
        )
        raise UsageError(message, keys=(one, other), remedy="one of them")
