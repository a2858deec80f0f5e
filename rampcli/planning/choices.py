"""Settings whose null leaves a choice to the plan."""

from dataclasses import replace
from typing import Any

from rampcli.config.layers import PLAN, Entry, Layer, Precedence, stack_of
from rampcli.planning.run_plan import Resolved


def is_chosen_by_plan(resolved: Resolved, key: str) -> bool:
    """Returns whether nobody has set a setting that the plan chooses."""
    entry = stack_of(resolved.config).entry(key)
    return entry.value is None or entry.place == PLAN


def with_choice(resolved: Resolved, key: str, value: Any) -> Resolved:
    """Returns the run with a value that the plan chose."""
    layer = Layer(PLAN, Precedence.USER, {key: Entry(value, PLAN, by=PLAN)})
    return replace(resolved, config=stack_of(resolved.config).above(layer).config())
