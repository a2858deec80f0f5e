"""The runs of a folder, with a line of facts about each, and those that somebody watches.

One thread reads the files of the watched runs, however many viewers they have.
"""

import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rampcli.config import snapshot
from rampcli.errors import RampcliError, printable, reason_of
from rampcli.report.page_data import View, quiet, run_data
from rampcli.runs.directory import BEFORE_THE_START, RunDirectory
from rampcli.runs.facts import is_training
from rampcli.runs.followed_run import FollowedRun, Signature, signature
from rampcli.runs.metrics import GOALS, PLACE_COLUMNS, measured_of
from rampcli.runs.rows import last_rows

LIST_AGAIN_S = 1.0
"""Shortest time between two listings of the folder, however many people watch."""
MOST_LISTED_RUNS = 2000
"""Maximum number of runs that a page lists. Those that changed last come first."""
LINK = "a symbolic link, which is not followed: serve the folder that it leads to"

RunEntry = dict[str, Any]
Signatures = tuple[Signature, ...]
READ_AT_ONCE_BYTES = 2**20
"""Read at least this many bytes of a large file between two answers."""
READ_AGAIN_S = 0.5
"""Seconds between two reads of files that have been read to the end."""
WATCHED_S = 60.0
"""Keep reading a run for this many seconds after a viewer asked. A hidden page asks rarely."""
KEPT_S = 600.0
"""Keep a run in memory for this many seconds after a viewer asked for it."""


@dataclass(slots=True)
class RunsFolder:
    """A folder of run directories, or a single run directory."""

    path: Path
    _listed: list[RunEntry] = field(default_factory=list)
    _listed_at: float = -LIST_AGAIN_S
    _known: dict[str, tuple[Signatures, RunEntry]] = field(default_factory=dict)

    def runs(self) -> list[RunEntry]:
        """Returns facts about each run, the last changed first. They are at most a second old.

        Raises:
            OSError: the folder cannot be read.
        """
        now = time.monotonic()
        if now - self._listed_at >= LIST_AGAIN_S:
            found = [self._facts(*one) for one in self._directories()]
            known = [facts for facts in found if facts is not None]
            known.sort(key=lambda facts: (-facts["changed"], facts["name"]))
            self._listed, self._listed_at = known[:MOST_LISTED_RUNS], now
        return self._listed

    def find(self, name: str) -> RunDirectory | None:
        """Returns the run with a name, or None. Accepts only names in the list, never paths."""
        for known, path, is_link in self._directories():
            if known == name and not is_link and RunDirectory(path).config.is_file():
                return RunDirectory(path)
        return None

    def _directories(self) -> list[tuple[str, Path, bool]]:
        """Returns the name and the path of each folder, and whether it is a link."""
        if RunDirectory(self.path).config.is_file():
            return [(self.path.resolve().name, self.path, False)]
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as entries:
            return [
                (entry.name, Path(entry.path), entry.is_symlink())
                for entry in entries
                if not entry.name.startswith(".") and _is_folder(entry)
            ]
        return []

    def _facts(self, name: str, path: Path, is_link: bool) -> RunEntry | None:
        run = RunDirectory(path)
        try:
            if not run.config.is_file():
                return None
            if is_link:
                return _unread(name, damage=LINK)
            signatures = tuple(map(signature, (run.config, run.metrics, run.state)))
        except OSError as error:
            return _unread(name, damage=reason_of(error))
        known = self._known.get(name)
        if known is None or known[0] != signatures:
            known = self._known[name] = signatures, _read_facts(name, run, signatures)
        return known[1] | {"trains": is_training(run, known[1]["status"])}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder, or a link to one. Links in a circle are not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _read_facts(name: str, run: RunDirectory, signatures: Signatures) -> RunEntry:
    changed = max(modified_ns for _, _, modified_ns in signatures) / 1e9
    try:
        run.refuse_links()
        state = run.read_state() or BEFORE_THE_START
        rows = last_rows(run.metrics, 1)
        unit = snapshot.unit(run.config)
    except (RampcliError, OSError) as error:
        return _unread(name, damage=reason_of(error), changed=changed)
    return _unread(name, damage=None, changed=changed) | {
        "status": printable(state["status"]),
        "unit": unit,
        "row": {key: rows[0].get(key) for key in PLACE_COLUMNS} if rows else None,
        "goals": _goals(rows[0]) if rows else [],
    }


def _goals(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what training improves, each with its value in a row."""
    known = {name for name, value in row.items() if value is not None}
    goals = [one for one in measured_of(GOALS, known) if one.name in known]
    return [{"name": one.tile or one.name, "value": row[one.name]} for one in goals]


def _unread(name: str, *, damage: str | None, changed: float = 0.0) -> RunEntry:
    """Returns the entry of a run in the list, without facts from its files."""
    return {
        "name": name,
        "shown": printable(name),
        "changed": changed,
        "damage": None if damage is None else printable(damage),
        "status": "damaged",
        "unit": "samples",
        "row": None,
        "goals": [],
        "trains": False,
    }


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
        self.is_read = self.run.read(most_bytes=READ_AT_ONCE_BYTES)
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
