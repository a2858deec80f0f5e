"""The points of a run's curves: tags and values of a row of metrics.jsonl or events.jsonl."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rampcli.errors import visible
from rampcli.runs.event_kinds import EVALUATED, LOSSES_OF_AVERAGES
from rampcli.runs.metrics import METRICS, PLACES, Metric

TokensAt = Callable[[int], int | None]
VALIDATED = ("loss", *LOSSES_OF_AVERAGES, "bits_per_byte")
"""Columns of a validation that have curves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of some curves.

    Attributes:
        step: optimiser steps taken.
        time: when the values were measured, in seconds since 1970; None if it is unknown.
        samples: samples consumed, prompts in reinforcement learning.
        tokens: tokens consumed, or None if their number is unknown.
        metrics: values by tag.
    """

    step: int
    time: float | None
    samples: int
    tokens: int | None
    metrics: dict[str, float]


def point_of_step(row: dict[str, Any], declared: Sequence[Metric] = ()) -> Point:
    """Returns the point of a row of metrics.jsonl. Values that are null have no point.

    Args:
        declared: metrics that observers of the run have declared. Columns that nobody has declared
            have a tag without a group of their own.
    """
    is_rl = "reward" in row
    known = METRICS | {one.name: one for one in declared}
    return Point(
        step=row["step"],
        time=row.get("time"),
        samples=row["consumed_samples"],
        tokens=tokens if _is_number(tokens := row.get("consumed_tokens")) else None,
        metrics={
            known.get(name, Metric(visible(name), "")).tag(is_rl=is_rl): float(value)
            for name, value in row.items()
            if name not in PLACES and _is_number(value)
        },
    )


def point_of_event(event: dict[str, Any], *, tokens_at: TokensAt | None) -> Point | None:
    """Returns the point of a row of events.jsonl, or None for events without values of a curve.

    Args:
        tokens_at: returns the tokens in the first samples of the run, or None if they are unknown.
            None if samples have any length.
    """
    kind = event["event"]
    if kind == "validation":
        corpus = event.get("corpus")
        suffix = f"/{visible(corpus)}" if isinstance(corpus, str) else ""
        tags = {name: f"validation/{name}{suffix}" for name in VALIDATED}
    elif kind == "evaluation":
        tags = {name: f"evaluation/{name}" for name in (*EVALUATED, "unscored")}
    else:
        return None
    samples = event["consumed_samples"]
    return Point(
        step=event["step"],
        time=event["time"],
        samples=samples,
        tokens=None if tokens_at is None else tokens_at(samples),
        metrics={
            tag: float(event[name]) for name, tag in tags.items() if _is_number(event.get(name))
        },
    )


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
