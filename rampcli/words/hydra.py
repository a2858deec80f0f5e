"""Hydra's settings of its own that mean one of ours: where a run and a sweep write."""

from collections.abc import Mapping
from typing import TypeVar

from rampcli.errors import Assignments, UsageError
from rampcli.words.translation import System

Value = TypeVar("Value")
RUN_DIR, SWEEP_DIR = "hydra.run.dir", "hydra.sweep.dir"
"""A run is written where the first says, and the runs of a sweep where the second says."""
REFUSED = ("sets Hydra itself, which writes no files here", ("run_dir=FOLDER",))
"""Why its other settings are refused, and what to do instead."""
HYDRA = System(
    spellings={RUN_DIR: "run_dir"},
    remarks={RUN_DIR: "Hydra has another setting for the folder of a sweep."},
)


def of_sweep(values: Mapping[str, Value]) -> dict[str, Value]:
    """Returns values by key in which the folder of a sweep stands in place of that of a run."""
    own = {key: value for key, value in values.items() if key not in (RUN_DIR, SWEEP_DIR)}
    return own | ({RUN_DIR: values[SWEEP_DIR]} if SWEEP_DIR in values else {})


def name_folder_of_sweep(error: UsageError) -> None:
    """Changes an error of a sweep to name the setting that is written, as `of_sweep` moves it."""
    if RUN_DIR not in error.keys:
        return
    error.message = error.message.replace(RUN_DIR, SWEEP_DIR)
    error.keys = tuple(key.replace(RUN_DIR, SWEEP_DIR) for key in error.keys)
    error.set_by = tuple(place.replace(RUN_DIR, SWEEP_DIR) for place in error.set_by)
    error.remedies = tuple(
        one.renamed({RUN_DIR: SWEEP_DIR}) if isinstance(one, Assignments) else one
        for one in error.remedies
    )
