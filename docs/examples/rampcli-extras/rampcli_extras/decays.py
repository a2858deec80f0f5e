"""A power law of the learning rate: `schedule.decay_style=power`."""

from dataclasses import dataclass
from typing import Any

from rampcli.extend import decay_style, setting


@dataclass(kw_only=True, slots=True)
class Power:
    """The power's settings: `schedule.power.exponent`."""

    exponent: float = setting(0.5, "How fast the rate falls.", above=0)


@decay_style("power", settings=Power)
def power(schedule: Any, step: Any, settings: Power) -> float:
    """Returns peak x (warm-up / consumed samples) ^ exponent, and at least the floor."""
    warmup = max(1, schedule.warmup_samples)
    rate = schedule.peak * (warmup / max(warmup, step.consumed_samples)) ** settings.exponent
    return float(max(schedule.floor, rate))
