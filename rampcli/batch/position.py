"""Positions in a run, counted in tokens, samples or optimiser steps."""

from dataclasses import dataclass

from rampcli.batch.quantities import parse_whole
from rampcli.errors import UsageError, set_to

SAMPLES_UNIT, STEPS_UNIT, TOKENS_UNIT = "samples", "steps", "tokens"
"""What a position or a threshold counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPosition:
    """How far a run has come. Samples may differ in length, so each unit is counted."""

    samples: int = 0
    steps: int = 0
    tokens: int = 0

    def count(self, unit: str) -> int:
        """Returns the position in `SAMPLES_UNIT`, `STEPS_UNIT` or `TOKENS_UNIT`."""
        counts = {SAMPLES_UNIT: self.samples, STEPS_UNIT: self.steps, TOKENS_UNIT: self.tokens}
        return counts[unit]


RUN_START = RunPosition()


@dataclass(frozen=True, slots=True)
class Goal:
    """A position in one unit: tokens, samples or steps from the start of a run."""

    unit: str
    count: int

    def __str__(self) -> str:
        return f"{self.count:,} {self.unit}"


def parse_goal(text: str, *, key: str, prefix: str = "", prompts: int | None = None) -> Goal:
    """Returns the position that a text names: `7.5T` tokens, `samples:2B` or `steps:10000`.

    Args:
        key: setting that has the text, for the error.
        prefix: what stands before the text in the setting.
        prompts: prompts before the position, in reinforcement learning, where no position counts
            tokens; None in pretraining.

    Raises:
        UsageError: it has another form, is not above zero, or counts tokens of responses.
    """
    unit, colon, number = text.strip().rpartition(":")
    count = parse_whole(number.strip())
    if (
        unit.strip() not in ((SAMPLES_UNIT, STEPS_UNIT, TOKENS_UNIT) if colon else ("",))
        or not count
    ):
        counts, example = ("tokens, or of samples or steps", "7.5T")
        if prompts is not None:
            counts, example = ("prompts or steps", "samples:10000")
        raise UsageError(
            f"{key}={prefix}{text} is not a position: a number of {counts} with `samples:` or"
            " `steps:` in front",
            keys=(key,),
            remedy=set_to(key, f"{prefix}{example}", f"{prefix}steps:10000"),
        )
    goal = Goal(unit.strip() or TOKENS_UNIT, count)
    if goal.unit == TOKENS_UNIT and prompts is not None:
        later = number.strip() if count > prompts else prompts + 1
        raise UsageError(
            f"{key}={prefix}{text} counts tokens, and reinforcement learning counts prompts",
            keys=(key,),
            remedy=set_to(key, f"{prefix}{SAMPLES_UNIT}:{later}"),
        )
    return goal
