"""Follows the rows of a run and logs each of them once."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

from rampcli.errors import DamagedFileError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import Tail, end_of_step
from rampcli.tracking.points import Point, TokensAt, point_of_event, point_of_step
from rampcli.tracking.position import Position
from rampcli.tracking.tracker import SAMPLES, TOKENS, Tracker

POLL_S = 2.0
"""Seconds between looks at the files of a run."""
MOST_ROWS = 1000
"""Rows that are held in memory at once. The file is the backlog."""
DAMAGED_READS = 3
"""Reads in a row that may find a damaged row. A resume cuts the file while it is being read."""
RETRY_S = 1.0


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
            rows = list(islice(new, MOST_ROWS))
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
            axes = {SAMPLES: float(point.samples)}
            if point.tokens is not None:
                axes[TOKENS] = float(point.tokens)
            self.tracker.log(
                axes | point.metrics,
                point.step,
                time=time.time() if point.time is None else point.time,
            )
        position.points += 1
        position.step = position.reached = point.step
        position.sent = [*position.sent, *point.metrics] if is_event else []
        if time.monotonic() - self._saved_at > POLL_S:  # a slow tracker
            self._save_position(is_safe=self.tracker.flush())
