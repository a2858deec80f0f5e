"""What the events of a run say: its newest ones, counts, validations, marks and messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rampcli.errors import printable, visible
from rampcli.files.records import MOST
from rampcli.runs.directory import STAGE_BOUNDARY
from rampcli.runs.event_kinds import EVALUATED, EVENTS, LOSSES_OF_AVERAGES, OTHER, PLACE_SHAPE
from rampcli.runs.rows import Tail, number_or_none, read_rows
from rampcli.runs.time_spent import RunClock

MOST_MARKS = 1000
"""Marks of one kind that a page gets. Of more, an even choice is shown."""
MOST_LOGGED = 200
MOST_TEXTS, LONGEST_SHOWN_TEXT = 8, 2000
"""Texts that a page shows, and their most characters."""
MOST_PROFILES = 1000
MOST_EVENTS = 200_000
"""Largest number of events of one kind that are kept. Of more, the newest are kept."""
MOST_KINDS = 1000
EventPoint = dict[str, Any]


@dataclass(slots=True)
class RunEvents:
    """What the events of a run say, as far as they were added.

    Attributes:
        started, ended: earliest and latest time, in seconds since 1970, or None without events.
        device: name of rank 0's device, or None.
        origin: the `run`, `step` and `consumed_samples` of the checkpoint of another run with which
            the run begins, or None.
        newest: the newest event of each kind that `EVENTS` keeps.
        nodes: number of nodes on which the processes of each stage ran last.
        counts: number of events by kind.
        lost_steps: steps that were repeated.
        warnings: reasons of warnings, oldest first.
        changes: settings that commands have changed, oldest first, each with `step`, `samples`,
            `time`, `setting`, and its values `old` and `new` as they are typed.
        validations: by the name of the corpus, or None for a corpus without one, points with
            `step`, `samples`, `time`, `loss`, `bits_per_byte` and the columns of
            `LOSSES_OF_AVERAGES`.
        evaluations: points with the results of evaluations on held-out prompts.
        marks: by kind, points with `step`, `samples`, `time` and `text`. The kind `start` has all
            starts of processes, `restart` those after an interruption.
        log: the last messages.
        texts: the last continuations of prompts, newest first.
        profiles: the last event `profile` of each rank and window.
        clock: tells where the time went.
    """

    started: float | None = None
    ended: float | None = None
    device: str | None = None
    origin: dict[str, Any] | None = None
    newest: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    lost_steps: int = 0
    warnings: list[str] = field(default_factory=list)
    changes: list[EventPoint] = field(default_factory=list)
    validations: dict[str | None, list[EventPoint]] = field(default_factory=dict)
    evaluations: list[EventPoint] = field(default_factory=list)
    marks: dict[str, list[EventPoint]] = field(default_factory=dict)
    log: list[EventPoint] = field(default_factory=list)
    texts: list[EventPoint] = field(default_factory=list)
    profiles: dict[tuple[int, ...], Mapping[str, Any]] = field(default_factory=dict)
    clock: RunClock = field(default_factory=RunClock)
    _costs: dict[str, list[float]] = field(default_factory=dict)
    _step: int = 0
    _samples: int = 0
    _stage: int | None = None
    _num_nodes: int | None = None
    _fault: str | None = None
    _stops: bool = True

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds further events, in their order."""
        for row in rows:
            kind, time = row["event"], row["time"]
            if kind == "branch":
                self.origin = {name: row[name] for name in PLACE_SHAPE} | {
                    "run": printable(row["run"])
                }
                continue  # the run has not started yet
            known = EVENTS.get(kind, OTHER)
            self.started = time if self.started is None else self.started
            self.ended = time if self.ended is None else max(self.ended, time)
            if kind in self.counts or len(self.counts) < MOST_KINDS:
                self.counts[kind] = self.counts.get(kind, 0) + 1
            if known.keeps_newest:
                self.newest[kind] = row
            for column in known.medians:
                if (seconds := number_or_none(row.get(column))) is not None:
                    _append(self._costs.setdefault(f"{kind}.{column}", []), seconds)
            self.clock.add(row)
            self._step = _count(row, "step", self._step)
            self._samples = _count(row, "consumed_samples", self._samples)
            if known.is_warning:
                _append(self.warnings, row["reason"])
            if known.text is not None:
                facts = {"reason": "", **row, "step": self._step}
                text = known.text.format_map(facts)
                self._mark(known.mark or kind, row, text, is_logged=known.is_logged)
            self._note(row)

    def median_s(self, kind: str, column: str) -> float | None:
        """Returns the median of the seconds in a column that has one, or None without any."""
        values = self._costs.get(f"{kind}.{column}")
        return median(values) if values else None

    def _place(self, row: Mapping[str, Any]) -> EventPoint:
        return {"step": self._step, "samples": self._samples, "time": row["time"]}

    def _mark(
        self, kind: str, row: Mapping[str, Any], text: str, *, is_logged: bool = False
    ) -> None:
        point = self._place(row) | {"text": printable(text)}
        _append(self.marks.setdefault(kind, []), point)
        if is_logged:
            self.log = [*self.log[-MOST_LOGGED + 1 :], {"kind": kind, **point}]

    def _note(self, row: Mapping[str, Any]) -> None:
        """Notes what only events of this kind say."""
        match row["event"]:
            case "launch":
                self._num_nodes = row.get("num_nodes")
                self._note_nodes(row)
            case "start":
                self._start(row)
            case "stop":
                self._stops = row["status"] == STAGE_BOUNDARY
                if row["status"] == "preempted":
                    text = f"saved and stopped after step {self._step:,}"
                    self._mark("preempted", row, text, is_logged=True)
            case "stage":
                self._note_nodes(row)
                stage = _count(row, "stage", 0)
                if stage != self._stage and self._step > 0:
                    phase = f"phase {row['phase']}, " if "phase" in row else ""
                    self._mark("stage", row, f"{phase}stage {stage}")
                self._stage = stage
            case "fault":
                self._fault = row["reason"]
            case "lost":
                self.lost_steps += row["steps"]
            case "change":
                values = {name: printable(row[name]) for name in ("setting", "old", "new")}
                _append(self.changes, self._place(row) | values)
            case "validation":
                points = self.validations.setdefault(row.get("corpus"), [])
                others = {name: row.get(name) for name in ("bits_per_byte", *LOSSES_OF_AVERAGES)}
                self._add_point(points, row, loss=row["loss"], **others)
            case "evaluation":
                results = {name: row[name] for name in EVALUATED}
                self._add_point(self.evaluations, row, **results)
            case "samples":
                texts = [
                    {name: cut(one[name]) for name in ("prompt", "text")}
                    | {"step": self._step, "note": ""}
                    for one in row["texts"][:MOST_TEXTS]
                ]
                self.texts = [*texts, *self.texts][:MOST_TEXTS]
            case "profile":
                if len(self.profiles) == MOST_PROFILES:
                    del self.profiles[next(iter(self.profiles))]
                self.profiles[*row["steps"], row["rank"]] = row

    def _add_point(self, points: list[EventPoint], row: Mapping[str, Any], **values: Any) -> None:
        """Adds a point to a curve. A repeated step replaces its point and drops later ones."""
        while points and points[-1]["step"] >= self._step:
            points.pop()
        _append(points, self._place(row) | values)

    def _note_nodes(self, row: Mapping[str, Any]) -> None:
        stage = _count(row, "stage", -1)
        if self._num_nodes is not None and stage >= 0 and len(self.nodes) < MOST_EVENTS:
            self.nodes[stage] = self._num_nodes

    def _start(self, row: Mapping[str, Any]) -> None:
        name = row.get("device_name") or row.get("device")
        self.device = self.device if name is None else printable(name)
        if not self._stops or self._fault is not None:
            reason = self._fault or f"resumed after step {self._step:,}"
            self._mark("restart", row, reason, is_logged=True)
        self._fault, self._stops = None, False


def _count(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = row.get(name)
    return value if type(value) is int and 0 <= value <= MOST else otherwise


def _append(values: list[Any], value: Any) -> None:
    """Appends a value. Of more than `MOST_EVENTS`, the oldest goes."""
    values.append(value)
    del values[:-MOST_EVENTS]


def cut(text: Any) -> str:
    """Returns a text for a page, without its end if it is long."""
    found = text if isinstance(text, str) else ""
    end = "" if len(found) <= LONGEST_SHOWN_TEXT else " ..."
    return visible(found[:LONGEST_SHOWN_TEXT], keeps="\n\t") + end


def thin(points: list[EventPoint]) -> list[EventPoint]:
    """Returns at most `MOST_MARKS` of the points, evenly chosen, with the last one."""
    stride = -(-len(points) // MOST_MARKS)
    return points if stride <= 1 else points[::-stride][::-1]


def read_events(path: Path) -> RunEvents:
    """Returns what the events in a file say. Raises what `Tail.rows` raises."""
    events = RunEvents()
    events.add(read_rows(path))
    return events


class EventsFile:
    """events.jsonl, which is read further whenever it grows.

    Attributes:
        events: what the events say that were read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = RunEvents()
        self._tail = Tail(path)
        self._inode = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read."""
        return self._tail.offset

    def read(self, *, most_bytes: int | None = None) -> bool:
        """Reads what was added, unless that is more than `most_bytes`.

        A file that replaced another is read from its beginning.

        Returns:
            Whether all events were read.

        Raises:
            DamagedFileError: a row is damaged. What the rows before it say is kept.
            OSError: the file cannot be read.
        """
        try:
            found = self.path.stat()
            inode, size = found.st_ino, found.st_size
        except FileNotFoundError:
            inode, size = 0, 0
        if inode != self._inode or size < self._tail.offset:
            self.events, self._tail, self._inode = RunEvents(), Tail(self.path), inode
        if most_bytes is not None and size - self._tail.offset > most_bytes:
            return False
        self.events.add(self._tail.rows())
        return True
