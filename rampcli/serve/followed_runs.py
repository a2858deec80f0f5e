"""The runs that somebody watches. One thread reads on in their files, whatever the viewers do."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rampcli.report.followed_run import FollowedRun
from rampcli.report.page_data import View, run_data
from rampcli.serve.runs_folder import RunsFolder

PIECE_BYTES = 2**21
"""Bytes of a large file that are read at once, between two answers."""
READ_AGAIN_S = 0.5
WATCHED_S = 60.0
"""A run is read on for this long after somebody has asked for it. A hidden page asks rarely."""
KEPT_S = 600.0
"""What was read of a run is kept for this long after somebody has asked for it."""


class NoSuchRunError(LookupError):
    """There is no run of a name."""


@dataclass(slots=True)
class Watched:
    """A run that somebody watches.

    Attributes:
        run: the run.
        asked_at: when somebody last asked for it, as `time.monotonic` counts.
        lock: guards the run.
        is_read: whether the run was read to its end.
        waiting: threads of answers that wait for the lock. They go before further reading.
    """

    run: FollowedRun
    asked_at: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_read: bool = False
    waiting: set[int] = field(default_factory=set)

    @contextmanager
    def first(self) -> Iterator[None]:
        """Takes the lock before the thread that reads on does."""
        self.waiting.add(threading.get_ident())
        try:
            with self.lock:
                yield
        finally:
            self.waiting.discard(threading.get_ident())


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
        """Returns facts about all runs."""
        with self._lock:
            return self.folder.runs()

    def data(
        self, name: str, view: View, *, known: int | None
    ) -> tuple[int, dict[str, Any] | None]:
        """Returns the version of a run and what a page shows of it.

        Args:
            name: its name in the list.
            view: part to show.
            known: version that the page has. Of the same version, None is returned.

        Raises:
            NoSuchRunError: there is no run of this name.
        """
        watched = self._watch(name)
        with watched.first():
            if watched.run.version == known:
                return known, None
            return watched.run.version, run_data(watched.run, view)

    def _watch(self, name: str) -> Watched:
        now = time.monotonic()
        with self._lock:
            directory = self.folder.find(name)
            if directory is None:
                raise NoSuchRunError(name)
            watched = self._runs.get(name)
            if watched is None:
                watched = self._runs[name] = Watched(FollowedRun(name, directory), now)
        with watched.first():
            if not watched.run.version or now - watched.asked_at > WATCHED_S:
                watched.is_read = watched.run.read(most_bytes=PIECE_BYTES)
            watched.asked_at = now
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
                if watched.waiting:
                    continue
                with watched.lock:
                    watched.is_read = watched.run.read(most_bytes=PIECE_BYTES)
            # A short pause lets answers come in between while a large file is read.
            time.sleep(READ_AGAIN_S if all(one.is_read for one in runs) else 0.005)
