"""Hydra's settings of its own that mean one of ours: where a run and a sweep write."""

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")
RUN_DIR, SWEEP_DIR = "hydra.run.dir", "hydra.sweep.dir"
"""A run is written where the first says, and the runs of a sweep where the second says."""
SPELLINGS: dict[str, str] = {RUN_DIR: "run_dir"}


def of_sweep(values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns values by key in which the folder of a sweep stands in place of that of a run."""
    own = {key: value for key, value in values.items() if key not in (RUN_DIR, SWEEP_DIR)}
    return own | ({RUN_DIR: values[SWEEP_DIR]} if SWEEP_DIR in values else {})
