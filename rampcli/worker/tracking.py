"""Starts the trackers of workers that nobody supervises."""

import sys
from collections.abc import Sequence
from typing import Any

from rampcli.checkpoint.state import TrainingState
from rampcli.errors import visible
from rampcli.launch.observer import Observer
from rampcli.launch.trackers import Trackers
from rampcli.runs.directory import RunDirectory
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


class Tracking(LoopObserver):
    """Runs the trackers until training ends. Only rank 0 has one."""

    def __init__(self, run: RunDirectory, names: Sequence[str]) -> None:
        self._trackers = Trackers(run, names, _Warnings())
        self._trackers.__enter__()

    def after_step(self, _state: TrainingState, _step: TakenStep) -> None:
        """Warns if a tracker has failed."""
        self._trackers.poll()

    def at_end(self, _state: TrainingState, _status: str, *, save_s: float) -> None:  # noqa: ARG002
        """Waits until the trackers have logged everything."""
        self._trackers.close()


class _Warnings(Observer):
    """Prints warnings to the log of the worker."""

    def on_event(self, row: dict[str, Any]) -> None:
        """Prints a warning."""
        print(f"warning: {visible(row['reason'])}", file=sys.stderr)  # noqa: T201
