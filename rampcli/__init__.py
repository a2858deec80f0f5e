"""Pretrains language models with a batch size that is planned, exact and grows.

The names in `__all__` are imported on first use.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "compose": "rampcli.config.compose",
    "from_hydra": "rampcli.config.hydra_apps",
    "plan": "rampcli.cli.composing",
    "print_plan": "rampcli.cli.plan",
    "read_run": "rampcli.runs.record",
    "run": "rampcli.cli.training",
    "Config": "rampcli.settings.config",
    "BatchPlan": "rampcli.batch.plan",
    "Observer": "rampcli.launch.observer",
    "RampSchedule": "rampcli.batch.ramp",
}
__all__ = [
    *("BatchPlan", "Config", "Observer", "RampSchedule"),
    *("compose", "from_hydra", "llm", "plan", "print_plan", "read_run", "run"),
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "llm":
        return importlib.import_module("rampcli.llm")
    raise AttributeError(f"module 'rampcli' has no attribute {name!r}")
