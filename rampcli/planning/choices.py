"""Settings whose null leaves a choice to the plan."""

from dataclasses import replace
from typing import Any

from rampcli.config.layers import PLAN, Entry, Layer, Precedence, stack_of
from rampcli.planning.run_plan import ResolvedPhase
from rampcli.settings.config import Config


def is_chosen_by_plan(config: Config, key: str) -> bool:
    """Returns whether nobody has set a setting that the plan chooses."""
    entry = stack_of(config).entry(key)
    return entry.value is None or entry.place == PLAN


def with_choice(phase: ResolvedPhase, key: str, value: Any) -> ResolvedPhase:
    """Returns the phase with a value that the plan chose."""
    layer = Layer(PLAN, Precedence.USER, {key: Entry(value, PLAN, by=PLAN)})
    return replace(phase, config=stack_of(phase.config).above(layer).config())
