"""The events of a run as a page shows them: marks in charts, a log, and validation curves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rampcli.errors import printable, visible
from rampcli.runs.directory import STAGE_BOUNDARY
from rampcli.runs.rows import EVALUATED, WARNINGS
from rampcli.runs.time_spent import DURATIONS

MOST_MARKS = 1000
"""Marks of one kind that a page gets. Of more, an even choice is shown."""
MOST_LOGGED = 200
MOST_TEXTS, LONGEST_TEXT = 8, 2000
"""Texts that a page shows, and their most characters."""
MOST_PROFILES = 100
MOST_EVENTS = 200_000
"""Largest number of events of one kind that are kept. Later ones are ignored."""
LOGGED = ("lost", "skip", "restart", "preempted", *WARNINGS)
"""What the log shows."""
TIMED = (
    *("time", "step", "save_s", "steps", "lost_s", "last_step_at"),
    *(column for column, _ in DURATIONS.values()),
)
"""Columns of numbers that `rampcli.runs.time_spent` reads."""

Point = dict[str, Any]


@dataclass(slots=True)
class RunEvents:
    """What a page shows of events.jsonl.

    Attributes:
        started: time of the first event, in seconds since 1970, or None without events.
        device: name of rank 0's device, or None.
        marks: by kind, points with `step`, `samples`, `time` and `text`. The kind `start` has all
            starts of processes, `restart` those after an interruption.
        curves: by name, points with a `value`: validation losses and results of evaluations.
        log: the last messages.
        texts: the last continuations of prompts, newest first.
        rows: events without their texts, from which follows where the time went.
        profiles: the last events `profile`.
    """

    started: float | None = None
    device: str | None = None
    marks: dict[str, list[Point]] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    log: list[Point] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: list[Point] = field(default_factory=list)
    profiles: list[Mapping[str, Any]] = field(default_factory=list)
    _step: int = 0
    _samples: int = 0
    _stage: int | None = None
    _fault: str | None = None
    _stops: bool = True

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds further events, in their order."""
        for row in rows:
            if self.started is None:
                self.started = row["time"]
            if len(self.rows) < MOST_EVENTS:
                words = {name: str(row[name]) for name in ("event", "status") if name in row}
                numbers = {name: row[name] for name in TIMED if _is_sound(row.get(name, ""))}
                self.rows.append(words | numbers)
            self._step = _count(row, "step", self._step)
            self._samples = _count(row, "consumed_samples", self._samples)
            handle = _HANDLERS.get(row["event"])
            if handle is not None:
                handle(self, row)

    def _mark(self, kind: str, row: Mapping[str, Any], text: str) -> None:
        point = {"step": self._step, "samples": self._samples, "time": row["time"]}
        point["text"] = printable(text)
        marks = self.marks.setdefault(kind, [])
        if len(marks) < MOST_EVENTS:
            marks.append(point)
        if kind in LOGGED:
            self.log = [*self.log[-MOST_LOGGED + 1 :], {"kind": kind, **point}]

    def _add_point(self, name: str, value: float | None, row: Mapping[str, Any]) -> None:
        """Adds a point to a curve. A repeated step replaces its point and drops later ones."""
        points = self.curves.setdefault(name, [])
        while points and points[-1]["step"] >= self._step:
            points.pop()
        if len(points) < MOST_EVENTS:
            place = {"step": self._step, "samples": self._samples, "time": row["time"]}
            points.append({**place, "value": value})

    def _start(self, row: Mapping[str, Any]) -> None:
        name = row.get("device_name") or row.get("device")
        self.device = self.device if name is None else printable(name)
        self._mark("start", row, "")
        if not self._stops or self._fault is not None:
            self._mark("restart", row, self._fault or f"resumed after step {self._step:,}")
        self._fault, self._stops = None, False

    def _stop(self, row: Mapping[str, Any]) -> None:
        self._stops = row["status"] == STAGE_BOUNDARY
        if row["status"] == "preempted":
            self._mark("preempted", row, f"saved and stopped after step {self._step:,}")

    def _enter_stage(self, row: Mapping[str, Any]) -> None:
        stage = _count(row, "stage", 0)
        if stage != self._stage and self._step > 0:
            self._mark("stage", row, f"stage {stage}")
        self._stage = stage

    def _note_fault(self, row: Mapping[str, Any]) -> None:
        self._fault = row["reason"]
        self._mark("fault", row, row["reason"])

    def _note_reason(self, row: Mapping[str, Any]) -> None:
        self._mark(row["event"], row, str(row.get("reason", "")))

    def _lose(self, row: Mapping[str, Any]) -> None:
        text = f"{row['steps']:,} steps are repeated ({row['lost_s']:,.1f} s)"
        self._mark("lost", row, text)

    def _save(self, row: Mapping[str, Any]) -> None:
        self._mark("checkpoint", row, f"checkpoint of step {self._step:,}")

    def _validate(self, row: Mapping[str, Any]) -> None:
        corpus = row.get("corpus")
        of = f": {printable(corpus)}" if isinstance(corpus, str) else ""
        self._add_point(f"validation{of}", row["loss"], row)
        if type(bits := row.get("bits_per_byte")) in (int, float):
            self._add_point(f"bits per byte{of}", bits, row)
        self._mark("validation", row, f"validation after step {self._step:,}")

    def _show_texts(self, row: Mapping[str, Any]) -> None:
        texts = [
            {"step": self._step, "prompt": cut(one["prompt"]), "text": cut(one["text"]), "note": ""}
            for one in row["texts"][:MOST_TEXTS]
        ]
        self.texts = [*texts, *self.texts][:MOST_TEXTS]

    def _keep_profile(self, row: Mapping[str, Any]) -> None:
        self.profiles = [*self.profiles[-MOST_PROFILES + 1 :], row]

    def _evaluate(self, row: Mapping[str, Any]) -> None:
        for name in EVALUATED:
            self._add_point(name, row[name], row)
        self._mark("validation", row, f"evaluation after step {self._step:,}")


_HANDLERS = {
    "start": RunEvents._start,
    "stop": RunEvents._stop,
    "stage": RunEvents._enter_stage,
    **dict.fromkeys(("skip", *WARNINGS), RunEvents._note_reason),
    "fault": RunEvents._note_fault,
    "lost": RunEvents._lose,
    "checkpoint": RunEvents._save,
    "validation": RunEvents._validate,
    "evaluation": RunEvents._evaluate,
    "samples": RunEvents._show_texts,
    "profile": RunEvents._keep_profile,
}


def _count(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = row.get(name)
    return value if type(value) is int and 0 <= value < 10**18 else otherwise


def _is_sound(value: Any) -> bool:
    """Returns whether a value is null or a number that can be reckoned with."""
    return value is None or (type(value) in (int, float) and abs(value) < 10**18)


def cut(text: Any) -> str:
    """Returns a text for a page, without its end if it is long."""
    found = text if isinstance(text, str) else ""
    end = "" if len(found) <= LONGEST_TEXT else " ..."
    return visible(found[:LONGEST_TEXT], keeps="\n\t") + end


def thin(points: list[Point], most: int = MOST_MARKS) -> list[Point]:
    """Returns at most `most` of the points, evenly chosen, with the last one."""
    stride = -(-len(points) // most)
    return points if stride <= 1 else points[::-stride][::-1]
