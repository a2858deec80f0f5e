"""A run that a page shows: its files, read further whenever they grow."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import reason_of
from rampcli.runs.columns import Columns
from rampcli.runs.decimation import Blocks, RowNumbers, change_rows
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import MOST_TEXTS, EventsFile, cut
from rampcli.runs.facts import RunFacts
from rampcli.runs.metrics import CHARTED, PLACE_COLUMNS, Metric
from rampcli.runs.record import RunSettings, read_settings
from rampcli.runs.rows import last_rows
from rampcli.runs.stages import SPAN_COLUMNS, Spans
from rampcli.runs.time_left import RECENT_STEPS

LONGEST_NOTE = 40
MOST_SPANS = 10_000

Signature = tuple[int, int, int]
"""Inode, bytes and time of the last change of a file; zeros if it does not exist."""


@dataclass(slots=True)
class FollowedRun:
    """A run, and the parts of its files that were read so far.

    Attributes:
        name: name that the page shows.
        columns: metrics that were read.
        declared: metrics that observers of the run have declared.
        blocks: summaries of the charted columns.
        facts: its state, its plan, its last rows and its events.
        texts: the last responses of reinforcement learning.
        damage: why a file could not be read, or None.
        version: grows whenever a page would show something else. It begins with the time, so that
            a server that was restarted does not give an earlier version to something new.
    """

    name: str
    directory: RunDirectory
    columns: Columns = field(init=False)
    declared: Sequence[Metric] = ()
    blocks: dict[str, Blocks] = field(default_factory=dict)
    facts: RunFacts = field(default_factory=RunFacts)
    settings: RunSettings = field(default_factory=RunSettings)
    texts: list[dict[str, Any]] = field(default_factory=list)
    damage: str | None = None
    version: int = field(default_factory=lambda: time.time_ns() // 10**6)
    _events: EventsFile = field(init=False)
    _changes: RowNumbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _scanned: int = 0
    _seen: dict[str, tuple[Signature, str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read_anew(())
        self._events = EventsFile(self.directory.events)
        self.facts.events = self._events.events

    def read(self, *, most_bytes: int | None = None) -> bool:
        """Reads what was added to the files, and returns whether all of the metrics are read.

        A damaged file is noted in `damage`. What was read of it before stays, and the other files
        are read.

        Args:
            most_bytes: read about this much of the metrics. None reads them to the end.
        """
        before = self._shown()
        self.damage = _damage_of(self.directory.refuse_links)
        is_read = True
        if self.damage is None:
            files = (
                self._damage_if_changed(self.directory.config, self._read_settings),
                self._damage_if_changed(self.directory.path / "plan.json", self._read_plan),
                self._damage_if_changed(self.directory.state, self._read_state),
                _damage_of(self._read_events),
                self._damage_if_changed(self.directory.responses, self._read_texts),
                self._damage_if_changed(self.directory.columns, self._read_declared),
                _damage_of(lambda: self._read_metrics(most_bytes)),
            )
            self.damage = next((reason for reason in files if reason is not None), None)
            is_read = self.columns.is_at_end
        self.version += self._shown() != before
        return is_read

    def _shown(self) -> tuple[Any, ...]:
        """Returns what differs whenever a page would show something else."""
        rows, events = (self.columns.rows, self.columns.resets), self._events
        return self.damage, rows, id(events.events), events.bytes_read, tuple(self._seen.items())

    @property
    def progress(self) -> float:
        """Share of the metrics that was read. An incomplete last line counts as read."""
        if not self.columns.is_at_end:
            with suppress(OSError, ZeroDivisionError):
                return min(1.0, self.columns.bytes_read / self.directory.metrics.stat().st_size)
        return 1.0

    @property
    def metrics(self) -> dict[str, NDArray[Any]]:
        """The columns of numbers that were read. A damaged file may have text in one."""
        found = {name: self.columns.numbers(name) for name in self.columns}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def charted(self) -> tuple[str, ...]:
        """Columns that have a chart."""
        return (*CHARTED, *(one.name for one in self.declared if one.chart is not None))

    @property
    def spans(self) -> Spans:
        """The parts in which stage, batch and processes stay the same."""
        return Spans(self.metrics, self._changes)

    def column(self, name: str) -> NDArray[Any]:
        """Returns a column of numbers, all of them NaN if rows have none."""
        values = self.columns.numbers(name)
        return np.full(self.columns.rows, np.nan) if values is None else values

    def _damage_if_changed(self, path: Path, read: Callable[[], None]) -> str | None:
        """Calls `read` if a file has changed or was damaged.

        Returns why it cannot be read, or None.
        """
        try:
            found = signature(path)
        except OSError as error:
            return reason_of(error)
        seen = self._seen.get(path.name)
        if seen is None or seen[0] != found or seen[1] is not None:  # an error may pass
            self._seen[path.name] = found, _damage_of(read)
        return self._seen[path.name][1]

    def _read_settings(self) -> None:
        self.settings = read_settings(self.directory.config)

    def _read_plan(self) -> None:
        self.facts.plan = self.directory.read_plan()

    def _read_state(self) -> None:
        self.facts.state = self.directory.read_state()

    def _read_declared(self) -> None:
        if (found := self.directory.read_columns()) != self.declared:
            self._read_anew(found)

    def _read_anew(self, declared: Sequence[Metric]) -> None:
        """Begins to read the rows, which have columns that the run declares."""
        self.declared = declared
        names = (*self.charted, *PLACE_COLUMNS, *SPAN_COLUMNS)
        self.columns = Columns(self.directory.metrics, names=names, dtype=np.float32)
        self._summarise(is_reset=True)

    def _read_events(self) -> None:
        try:
            self._events.read()
        finally:  # events before a damaged one are shown
            self.facts.events = self._events.events

    def _read_texts(self) -> None:
        self.texts = [
            {
                "step": row["step"],
                "prompt": cut(row.get("prompt")),
                "text": cut(row.get("response")),
                "note": f"reward {row.get('reward')}"[:LONGEST_NOTE],
            }
            for row in reversed(last_rows(self.directory.responses, MOST_TEXTS))
        ]

    def _read_metrics(self, most_bytes: int | None) -> None:
        resets = self.columns.resets
        try:
            self.columns.read(most_bytes=most_bytes)
        finally:  # rows before a damaged one are shown
            self.facts.rows = self.columns.last
            self._summarise(is_reset=self.columns.resets != resets)
        if not self.columns.is_at_end:  # the newest rows show how fast the run is
            self.facts.rows = last_rows(self.directory.metrics, RECENT_STEPS)

    def _summarise(self, *, is_reset: bool) -> None:
        """Brings the summaries of rows up to date. `is_reset`: rows were dropped before others."""
        if is_reset:
            self.blocks, self._scanned, self._changes = {}, 0, self._changes[:0]
        metrics = self.metrics
        for name in self.charted:
            if name in metrics:
                self.blocks.setdefault(name, Blocks()).extend(metrics[name])
        first = max(0, self._scanned - 1)
        if self.columns.rows:
            found = first + change_rows(*(metrics[name][first:] for name in SPAN_COLUMNS))
            self._changes = np.concatenate((self._changes, found))[: MOST_SPANS - 1]
        self._scanned = self.columns.rows


def signature(path: Path) -> Signature:
    """Returns the signature of a file, which changes if it is replaced or written."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _damage_of(read: Callable[[], None]) -> str | None:
    """Calls a function that reads a file, and returns why it cannot be read, or None."""
    try:
        read()
    except Exception as error:  # whatever a file holds, other files and runs are still shown
        return reason_of(error)
    return None
