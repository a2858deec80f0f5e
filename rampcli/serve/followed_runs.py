"""The runs that somebody watches. One thread reads their files, however many viewers."""

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from rampcli.report.page_data import View, quiet, run_data
from rampcli.runs.facts import is_training
from rampcli.runs.followed_run import FollowedRun
from rampcli.serve.runs_folder import RunsFolder

PIECE_BYTES = 2**20
"""Read at least this many bytes of a large file between two answers."""
READ_AGAIN_S = 0.5
"""Seconds between two reads of files that have been read to the end."""
WATCHED_S = 60.0
"""Keep reading a run for this many seconds after a viewer asked. A hidden page asks rarely."""
KEPT_S = 600.0
"""Keep a run in memory for this many seconds after a viewer asked for it."""


@dataclass(slots=True)
class Watched:
    """A run that somebody watches.

    Attributes:
        asked_at, read_at: when a viewer last asked for it, and when it was last read, as
            `time.monotonic` counts.
        lock: guards the run.
        is_read: whether the run was read to its end.
    """

    run: FollowedRun
    asked_at: float
    read_at: float = -math.inf
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_read: bool = False

    def read(self) -> None:
        """Reads the next piece. The caller holds the lock."""
        self.is_read = self.run.read(most_bytes=PIECE_BYTES)
        self.read_at = time.monotonic()


class FollowedRuns:
    """The runs that are watched.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: RunsFolder) -> None:
        self.folder = folder
        self._runs: dict[str, Watched] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read_on, name="reader", daemon=True).start()

    def listed(self) -> list[dict[str, Any]]:
        """Returns facts about all runs. Raises what `RunsFolder.runs` raises."""
        with self._lock:
            return self.folder.runs()

    def data(self, name: str, view: View, *, known: int | None) -> dict[str, Any] | None:
        """Returns the `version` of a run and its `data` for a page, or None if there is no run.

        `quiet` says that a run which trains takes no steps, while nothing else changes.

        Args:
            known: version that the page has. If it is still the latest, the data is None.
        """
        watched = self._watch(name)
        if watched is None:
            return None
        with watched.lock:
            run = watched.run
            if run.version != known:
                data = run_data(run, view)
                return {"version": run.version, "data": data, "quiet": data["quiet"]}
            trains = is_training(run.directory, run.facts.recorded["status"])
            return {"version": known, "data": None, "quiet": quiet(run) if trains else None}

    def _watch(self, name: str) -> Watched | None:
        now = time.monotonic()
        with self._lock:
            directory = self.folder.find(name)
            if directory is None:
                return None
            watched = self._runs.get(name)
            if watched is None:
                watched = self._runs[name] = Watched(FollowedRun(name, directory), now)
            watched.asked_at = now
        with watched.lock:
            if now - watched.read_at > WATCHED_S:
                watched.read()
        return watched

    def _read_on(self) -> None:
        while True:
            now = time.monotonic()
            with self._lock:
                self._runs = {
                    name: one for name, one in self._runs.items() if now - one.asked_at < KEPT_S
                }
                runs = [one for one in self._runs.values() if now - one.asked_at < WATCHED_S]
            for watched in runs:
                with watched.lock:
                    watched.read()
            # A short pause lets answers come in between while a large file is read.
            time.sleep(READ_AGAIN_S if all(one.is_read for one in runs) else 0.005)
