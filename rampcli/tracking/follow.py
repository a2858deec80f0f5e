"""Follows the rows of a run and logs each of them once."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rampcli.errors import DamagedFileError, visible
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import EVALUATED, LOSSES_OF_AVERAGES
from rampcli.runs.metrics import METRICS, PLACE_COLUMNS, Metric
from rampcli.runs.rows import Tail, end_of_step
from rampcli.tracking.tracker import SAMPLES_AXIS, TOKENS_AXIS, Position, Tracker

TokensAt = Callable[[int], int | None]
VALIDATED = ("loss", *LOSSES_OF_AVERAGES, "bits_per_byte")
"""Columns of a validation that have curves."""
LOOK_EVERY_S = 2.0
"""Seconds between looks at the files of a run."""
MOST_HELD_ROWS = 1000
"""Rows that are held in memory at once. The file is the backlog."""
DAMAGED_READS = 3
"""Reads in a row that may find a damaged row. A resume cuts the file while it is being read."""
RETRY_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of some curves.

    Attributes:
        step: optimiser steps taken.
        time: when the values were measured, in seconds since 1970; None if it is unknown.
        samples: samples consumed, prompts in reinforcement learning.
        tokens: tokens consumed, or None if their number is unknown.
        metrics: values by tag.
    """

    step: int
    time: float | None
    samples: int
    tokens: int | None
    metrics: dict[str, float]


def point_of_step(row: dict[str, Any], declared: Sequence[Metric] = ()) -> Point:
    """Returns the point of a row of metrics.jsonl. Values that are null have no point.

    Args:
        declared: metrics that observers of the run have declared. Columns that nobody has declared
            have a tag without a group of their own.
    """
    is_rl = "reward" in row
    known = METRICS | {one.name: one for one in declared}
    return Point(
        step=row["step"],
        time=row.get("time"),
        samples=row["consumed_samples"],
        tokens=tokens if _is_number(tokens := row.get("consumed_tokens")) else None,
        metrics={
            known.get(name, Metric(visible(name), "")).tag(is_rl=is_rl): float(value)
            for name, value in row.items()
            if name not in PLACE_COLUMNS and _is_number(value)
        },
    )


def point_of_event(event: dict[str, Any], *, tokens_at: TokensAt | None) -> Point | None:
    """Returns the point of a row of events.jsonl, or None for events without values of a curve.

    Args:
        tokens_at: returns the tokens in the first samples of the run, or None if they are unknown.
            None if samples have any length.
    """
    kind = event["event"]
    if kind == "validation":
        corpus = event.get("corpus")
        suffix = f"/{visible(corpus)}" if isinstance(corpus, str) else ""
        tags = {name: f"validation/{name}{suffix}" for name in VALIDATED}
    elif kind == "evaluation":
        tags = {name: f"evaluation/{name}" for name in (*EVALUATED, "unscored")}
    else:
        return None
    samples = event["consumed_samples"]
    return Point(
        step=event["step"],
        time=event["time"],
        samples=samples,
        tokens=None if tokens_at is None else tokens_at(samples),
        metrics={
            tag: float(event[name]) for name, tag in tags.items() if _is_number(event.get(name))
        },
    )


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


class Follower:
    """Logs the rows of a run in order, each of them once.

    A validation is logged after the row of its step and before the next one. A step that is
    repeated after a resume has the same values as before, so it is not logged again.

    Args:
        tracker: where points are logged. It was opened at `position`.
        position: how far the tracker has come.
        tokens_at: as in `point_of_event`.
    """

    def __init__(
        self,
        run: RunDirectory,
        tracker: Tracker,
        position: Position,
        save: Callable[[Position], None],
        *,
        tokens_at: TokensAt | None,
    ) -> None:
        self.run = run
        self.tracker = tracker
        self.position = position
        self._save = save
        self._tokens_at = tokens_at
        self._already_logged = tracker.logged
        self._events = Tail(run.events, position.events_from)
        self._event_rows = self._events.rows()
        self._next_event: Point | None = None
        self._damaged_reads = 0
        self._stop_at = math.inf
        self._save_position(is_safe=True)

    def pass_on(self) -> bool:
        """Logs some of the rows that are new. Returns whether there may be more.

        Raises:
            DamagedFileError: a row is damaged.
        """
        before = self.position.points
        # Rows are read before events: then all events before a row are in the file.
        rows, is_damaged = self._read_rows()
        declared = self.run.read_columns() if rows else ()
        for row in rows:
            self._log_events(last_step=row["step"] - 1)
            if time.monotonic() > self._stop_at:
                break
            self._log(point_of_step(row, declared), is_event=False)
        self._log_events(last_step=self.position.step)
        if self.position.points > before:
            self._save_position(is_safe=self.tracker.flush())
        return is_damaged or bool(rows)

    def close(self, *, within_s: float = math.inf) -> bool:
        """Logs the remaining rows, and closes the tracker.

        Args:
            within_s: seconds after which no further row is logged.

        Returns:
            True if all rows were logged.
        """
        self._stop_at = time.monotonic() + within_s
        is_behind = True
        while is_behind and time.monotonic() <= self._stop_at:
            is_behind = self.pass_on()
        self.tracker.close()
        self._save_position(is_safe=True)
        return not is_behind

    def _save_position(self, *, is_safe: bool) -> None:
        """Saves the position, or only the step it reached unless the points are safe."""
        if is_safe:
            self.saved = replace(self.position, facts={**self.tracker.facts})
        else:
            self.saved = replace(self.saved, reached=self.position.reached)
        self._save(self.saved)
        self._saved_at = time.monotonic()

    def _read_rows(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the next rows, and whether reading found a damaged row that may be whole soon."""
        path = self.run.metrics
        try:
            # A resume may repeat logged steps after this search for the end of them.
            tail = Tail(path, end_of_step(path, self.position.step))
            new = (row for row in tail.rows() if row["step"] > self.position.step)
            rows = list(islice(new, MOST_HELD_ROWS))
        except DamagedFileError:
            self._damaged_reads += 1
            if self._damaged_reads == DAMAGED_READS:
                raise
            time.sleep(RETRY_S)
            return [], True
        self._damaged_reads = 0
        return rows, False

    def _log_events(self, *, last_step: int) -> None:
        """Logs the events up to a step that were not logged yet."""
        while (point := self._peek()) is not None and point.step <= last_step:
            self._next_event = None
            is_new = point.step == self.position.step and not (
                point.metrics.keys() <= {*self.position.sent}
            )
            if is_new:
                self._log(point, is_event=True)

    def _peek(self) -> Point | None:
        """Returns the next event that has a point, which stays the next one, or None."""
        while self._next_event is None:
            event = next(self._event_rows, None)
            if event is None:
                self._event_rows = self._events.rows()  # those that are written from now on
                return None
            self._next_event = point_of_event(event, tokens_at=self._tokens_at)
        return self._next_event

    def _log(self, point: Point, *, is_event: bool) -> None:
        position = self.position
        if self._already_logged > 0:
            self._already_logged -= 1
        else:
            axes = {SAMPLES_AXIS: float(point.samples)}
            if point.tokens is not None:
                axes[TOKENS_AXIS] = float(point.tokens)
            self.tracker.log(
                axes | point.metrics,
                point.step,
                time=time.time() if point.time is None else point.time,
            )
        position.points += 1
        position.step = position.reached = point.step
        position.sent = [*position.sent, *point.metrics] if is_event else []
        if time.monotonic() - self._saved_at > LOOK_EVERY_S:  # a slow tracker
            self._save_position(is_safe=self.tracker.flush())
