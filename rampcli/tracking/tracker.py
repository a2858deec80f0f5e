"""The interface of trackers, and how far each has come: `trackers/NAME.json` of a run."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rampcli.errors import DamagedFileError, reading
from rampcli.files.guarded_folder import read_content
from rampcli.files.records import COUNT, parse_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import Tail, end_of_rows, last_rows

TrackerFacts = dict[str, str | int]
POSITION = {
    "step": COUNT,
    "sent": [str],
    "points": COUNT,
    "reached": COUNT,
    "events_from": COUNT,
    "facts": {...: (str, COUNT)},
}
"""Shape of the file, in the notation of `rampcli.files.records`."""
MOST_POSITION_BYTES = 2**16
SAMPLES_AXIS, TOKENS_AXIS = "samples", "tokens"
"""Metrics that say how much data was consumed: horizontal axes beside the step."""


@dataclass(kw_only=True, slots=True)
class Position:
    """How far a tracker has come. Everything up to `step` outlasts its process.

    Attributes:
        step: step of the last point.
        sent: tags of validations and evaluations of that step that were logged.
        reached: last step that was given to the tracker, whether it outlasts the process or not.
        events_from: byte of events.jsonl at which the events of these curves begin.
        facts: what the tracker needs to continue.
    """

    step: int = 0
    sent: list[str] = field(default_factory=list)
    points: int = 0
    reached: int = 0
    events_from: int = 0
    facts: TrackerFacts = field(default_factory=dict)


def position_file(run: RunDirectory, name: str) -> Path:
    """Returns the path of a tracker's position."""
    return run.trackers / f"{name}.json"


def read_position(run: RunDirectory, name: str) -> Position | None:
    """Returns the position of a tracker, or None if the run has not used the tracker yet.

    Raises:
        DamagedFileError: the file is damaged.
    """
    path = position_file(run, name)
    if not os.path.lexists(path):
        return None
    with reading(path, kind=DamagedFileError):
        content = read_content(path, most_bytes=MOST_POSITION_BYTES, follows_links=False)
    facts: dict[str, Any] = parse_json(content, POSITION, where=str(path))
    return Position(**{name: facts[name] for name in POSITION})


def save_position(run: RunDirectory, name: str, position: Position) -> None:
    """Replaces the position of a tracker."""
    run.write_json(position_file(run, name), asdict(position))


def begin_position(run: RunDirectory, name: str) -> None:
    """Writes the first position of a tracker unless it has one. Training must not have begun.

    A run that starts again from step 0 keeps the events of its earlier attempts, which belong to
    other curves.
    """
    run.make_folder(run.trackers)
    if read_position(run, name) is not None:
        return
    events = Tail(run.events)
    if last_rows(run.metrics, 1):
        events_from = 0
        for event in events.rows():
            if event["event"] == "start" and event["step"] == 0:
                events_from = events.offset
    else:
        events_from = end_of_rows(run.events) if run.events.exists() else 0
    save_position(run, name, Position(events_from=events_from))


class Tracker(Protocol):
    """Shows the metrics of a run. It lives in a process of its own, which may be killed anytime.

    Attributes:
        facts: what the next process needs to continue the same curves. They are stored with each
            position that is saved.
        logged: number of points after the position it was opened at that the tracker has already,
            because an earlier process was killed. They are not logged again.
    """

    facts: TrackerFacts
    logged: int

    def log_config(self, settings: Mapping[str, Any]) -> None:
        """Shows the settings of the run, by dotted key. Called once, before `log`."""

    def log(self, metrics: Mapping[str, float], step: int, *, time: float) -> None:
        """Adds a point to the curves.

        Args:
            metrics: values by tag, such as train/loss, with `SAMPLES_AXIS` and, if known,
                `TOKENS_AXIS`.
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
