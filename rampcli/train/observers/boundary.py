"""The cost of a boundary: the time from the last step before it to the first one after it."""

import time
from dataclasses import dataclass
from typing import Any

from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import STAGE_BOUNDARY, RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.train.observers.observer import LoopObserver, record_event
from rampcli.train.step import TakenStep


@dataclass(kw_only=True)
class BoundaryCosts(LoopObserver):
    """Writes the event `boundary` after the first step that follows a stage boundary.

    Times are in seconds since 1970.

    Attributes:
        started: when this process ran its first line.
        imported: when it had imported its modules.
        loaded: when it had joined the other ranks, built the model and loaded the checkpoint. None
            before that and after the first step.
    """

    run: RunDirectory
    started: float
    imported: float
    loaded: float | None = None

    def at_start(self, _state: TrainingState) -> None:
        """Notes when this process has loaded everything."""
        self.loaded = time.time()

    def after_step(self, state: TrainingState, _step: TakenStep) -> None:
        """Writes the event after the first step."""
        if self.loaded is None:
            return
        costs = self.costs(state.step - 1, first_step_at=time.time())
        self.loaded = None
        if costs is not None:
            record_event(self.run, "boundary", state, **costs)

    def costs(self, step: int, *, first_step_at: float) -> dict[str, float | None] | None:
        """Returns the seconds between two steps that a boundary separates, and their parts.

        The events of the run tell about the processes before the boundary.

        Args:
            step: optimiser steps taken before the boundary.
            first_step_at: when this process completed its first step.

        Returns:
            `lost_s` and its parts, or None if the processes before did not end at a boundary. Parts
            that nobody recorded are None: workers that were started by hand have no supervisor.
        """
        stop: dict[str, Any] | None = None
        exited_at = launched_at = None
        for row in read_rows(self.run.events):
            if row["event"] == "stop":
                stop, exited_at, launched_at = row, None, None
            elif row["event"] == "exit" and exited_at is None:
                exited_at = row["time"]
            elif row["event"] == "launch":
                launched_at = row["time"]
        if stop is None or stop["status"] != STAGE_BOUNDARY or stop["step"] != step:
            return None
        moments = {
            "save_s": stop["time"],
            "exit_s": exited_at,
            "wait_s": launched_at,
            "start_s": self.started,
            "import_s": self.imported,
            "load_s": self.loaded,
            "first_step_s": first_step_at,
        }
        began = before = stop["time"] - stop["save_s"]
        parts: dict[str, float | None] = {}
        for name, moment in moments.items():
            parts[name] = (
                None if moment is None or before is None else max(0.0, round(moment - before, 3))
            )
            before = moment
        return {"lost_s": round(first_step_at - began, 3), **parts}
