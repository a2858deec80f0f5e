"""The interface of trackers, which `rampcli.trackers` lists by name."""

from collections.abc import Mapping
from typing import Any, Protocol

from rampcli.tracking.position import Facts

SAMPLES, TOKENS = "samples", "tokens"
"""Metrics that say how much data was consumed: horizontal axes beside the step."""


class Tracker(Protocol):
    """Shows the metrics of a run. It lives in a process of its own, which may be killed anytime.

    Attributes:
        facts: what the next process needs to continue the same curves. They are stored with each
            position that is saved.
        logged: number of points after the position it was opened at that the tracker has already,
            because an earlier process was killed. They are not logged again.
    """

    facts: Facts
    logged: int

    def log_config(self, settings: Mapping[str, Any]) -> None:
        """Shows the settings of the run, by dotted key. Called once, before `log`."""

    def log(self, metrics: Mapping[str, float], step: int, *, time: float) -> None:
        """Adds a point to the curves.

        Args:
            metrics: values by tag, such as train/loss, with `SAMPLES` and, if known, `TOKENS`.
            step: optimiser steps taken. Several points may have the same step.
            time: when the values were measured, in seconds since 1970.
        """

    def flush(self) -> bool:
        """Writes what was logged to disk.

        Returns:
            False if the tracker cannot tell whether the points would outlast this process. Then no
            position is saved before `close`.
        """

    def close(self) -> None:
        """Completes the curves of this process. They outlast it then."""
