"""The tracker `wandb`: a run of Weights & Biases, with its files in trackers/wandb/."""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from rampcli.runs.directory import RunDirectory
from rampcli.tracking.tracker import (
    SAMPLES_AXIS,
    TOKENS_AXIS,
    Position,
    Tracker,
    TrackerFacts,
)

PROJECT = "rampcli"
STEP = "step"
_SESSION = re.compile(r"(offline-)?run-[\w-]+", re.ASCII)
"""Folder that wandb makes for the files of a process."""


class WeightsAndBiases(Tracker):
    """Logs to a run of Weights & Biases, which all processes of a run directory continue.

    Environment variables of wandb take precedence. wandb does not say when a point is safe, so a
    position is saved only when a process ends as planned. After a kill, the points since then are
    logged again: offline into new files, which replace those of the killed process; otherwise
    without those that the server has.
    """

    def __init__(self, run: RunDirectory, position: Position, name: str) -> None:
        folder = run.trackers / "wandb"
        run.make_folder(folder)
        session = str(position.facts.get("session", ""))
        if session.startswith("offline-") and _SESSION.fullmatch(session):
            run.remove_tree(folder / session)
        # wandb would read the address of its server there. The run may come from a stranger.
        run.remove_tree(folder / "settings")
        self._points = position.points
        _set_defaults(run.trackers.absolute(), name, position.facts)
        self._run = wandb.init()
        # After a kill, the server may have points of the process that was killed.
        self.logged = max(0, self._run.step - position.points) if session else 0
        self._points += self.logged
        self.facts: TrackerFacts = {"id": self._run.id, "session": Path(self._run.dir).parent.name}
        for axis in (STEP, SAMPLES_AXIS, TOKENS_AXIS):
            self._run.define_metric(axis)
        self._run.define_metric("*", step_metric=STEP)

    def log_config(self, settings: Mapping[str, Any]) -> None:
        """Shows the settings in the run's configuration."""
        config: Any = self._run.config
        config.update(dict(settings), allow_val_change=True)

    def log(self, metrics: Mapping[str, float], step: int, *, time: float) -> None:
        """Logs a point. wandb numbers the points, and the training step is a metric."""
        row = {**metrics, STEP: step, "_timestamp": time}
        self._run.log(row, step=self._points, commit=True)
        self._points += 1

    def flush(self) -> bool:
        """Returns False: wandb writes and sends points in the background."""
        return False

    def close(self) -> None:
        """Waits until the points are written or sent."""
        self._run.finish()
        del self.facts["session"]


def _set_defaults(folder: Path, name: str, facts: TrackerFacts) -> None:
    """Sets variables of wandb that the user has not set."""
    defaults = {
        "WANDB_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_PROJECT": PROJECT,
        "WANDB_NAME": name,
        "WANDB_RUN_ID": str(facts.get("id") or secrets.token_hex(4)),
        "WANDB_RESUME": "allow",
        # The output of this process is not the output of the run, which is in the run directory.
        "WANDB_CONSOLE": "off",
    }
    for variable, value in defaults.items():
        os.environ.setdefault(variable, value)
