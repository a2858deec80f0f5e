"""Where the time of a run went, from its events: steps that count, and everything else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rampcli.runs.directory import STAGE_BOUNDARY
from rampcli.runs.event_kinds import EVENTS, OTHER, TimePart
from rampcli.runs.rows import number_or_none

ROUNDING_S = 0.002
"""Times and durations are written in milliseconds."""
MOST_HELD = 10_000
"""Events that are held back, at most, until it is known when processes that died took a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpent:
    """Where the time of a run went.

    Attributes:
        parts: seconds by name, such as `"training"`, `"validation"` and `"restarts"`. They add up
            to `elapsed_s`.
    """

    parts: dict[str, float]

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first launch to the last sign of life."""
        return sum(self.parts.values())

    @property
    def running_s(self) -> float:
        """Seconds of these in which the run had processes, or waited to restart them."""
        return self.elapsed_s - self.parts[TimePart.STOPPED]

    @property
    def goodput(self) -> float | None:
        """Share of the running time that went into steps that count; None before the start."""
        return self.parts[TimePart.TRAINING] / self.running_s if self.running_s > 0 else None


@dataclass(slots=True)
class RunClock:
    """Attributes each moment to a part, event by event.

    Attributes:
        parts: seconds by part.
        at: time up to which seconds are attributed; None before the first event.
        part: the part that the time after `at` belongs to.
        begin: the part that the next start of processes belongs to.
        died_at: when processes that trained ended without a last save; None if they did not.
        has_saved: whether the processes ended with a last save.
        stalls: time and seconds of each checkpoint since the start.
        started_at: when the processes began to train.
        first_step: steps that were taken before.
        trained_before_s: seconds of training before.
        has_lost: whether the event `lost` came since then.
        held: events since a launch after processes that were killed. The event `lost` or `start`
            among them tells when those took their last step.
    """

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TimePart, 0.0))
    at: float | None = None
    part: TimePart = TimePart.STOPPED
    begin: TimePart = TimePart.START
    died_at: float | None = None
    has_saved: bool = False
    stalls: list[tuple[float, float]] = field(default_factory=list)
    started_at: float = 0.0
    first_step: int | None = None
    trained_before_s: float = 0.0
    has_lost: bool = False
    held: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds the next event of the run."""
        kind = event["event"]
        # Nothing recorded the end of processes that trained, so they were killed.
        if self.held or (self.part == TimePart.TRAINING and kind in ("launch", "lost", "start")):
            self.held.append(event)
            if kind in ("lost", "start") or len(self.held) == MOST_HELD:
                self._release()
        else:
            self._hear(event)

    def spent(self, *, last_step_at: float | None, now: float | None = None) -> TimeSpent:
        """Returns where the time went up to now.

        Args:
            last_step_at: when the last step of metrics.jsonl ended, in seconds since 1970; 0 if
                there is no step, None if the time is unknown.
            now: the present time if the run is training, else None.
        """
        clock = replace(self, parts={**self.parts}, stalls=[*self.stalls], held=[*self.held])
        if clock.held:
            clock._release()
        clock._end(last_step_at=last_step_at, now=now)
        return TimeSpent(parts={part: max(0.0, seconds) for part, seconds in clock.parts.items()})

    def _release(self) -> None:
        """Ends the processes that were killed, after their last step or at the last event.

        Then attributes the events since.
        """
        held, self.held = self.held, []
        if held[-1]["event"] == "lost" and held[-1]["last_step_at"] is not None:
            self._pass(held[-1]["last_step_at"])
        self.part, self.died_at = TimePart.STOPPED, self.at
        for event in held:
            self._hear(event)

    def _hear(self, event: Mapping[str, Any]) -> None:
        """Attributes the time up to an event."""
        kind, time = event["event"], event["time"]
        self._pass(time)
        match kind:
            case "launch":
                self.part, self.has_saved = self.begin, False
            case "start":
                self._start(event)
            case "stop":
                self._stop(event)
            case "exit":
                if self.part == TimePart.TRAINING:
                    self.died_at = time
                self.part = TimePart.STOPPED
            case "fault":
                if self.part == TimePart.STOPPED and not self.has_saved:
                    self.part = TimePart.RESTARTS  # the supervisor waits, then restarts them
            case "lost":  # steps will be repeated, and one was interrupted
                last, interrupted_s = event["last_step_at"], 0.0
                if last is not None and self.died_at is not None:
                    interrupted_s = max(0.0, self.died_at - last)
                self._move(event["lost_s"] + interrupted_s, TimePart.LOST)
                self.has_lost = True
            case _ if (interrupts := EVENTS.get(kind, OTHER).interrupts) is not None:
                column, part = interrupts
                seconds = number_or_none(event.get(column)) or 0.0
                if part == TimePart.CHECKPOINTS:
                    self.stalls.append((time, seconds))
                self._move(seconds, part)

    def _end(self, *, last_step_at: float | None, now: float | None) -> None:
        """Attributes the time after the last event."""
        if now is not None:
            self._pass(now)
        elif self.part == TimePart.TRAINING and last_step_at is not None:
            self._pass(last_step_at)
        if self.died_at is not None and last_step_at is not None:
            self._lose_since(last_step_at)

    def _pass(self, time: float) -> None:
        """Attributes the time until a moment. The clock of the system may have been set back."""
        if self.at is not None:
            self.parts[self.part] += max(0.0, time - self.at)
        self.at = time if self.at is None else max(self.at, time)

    def _move(self, seconds: float, part: TimePart) -> None:
        """Attributes seconds that were counted as training to another part."""
        moved = min(seconds, self.parts[TimePart.TRAINING])
        self.parts[TimePart.TRAINING] -= moved
        self.parts[part] += moved

    def _start(self, event: Mapping[str, Any]) -> None:
        """Begins to train. Processes that died without a step that counts have lost their time."""
        if self.died_at is not None and not self.has_lost and event.get("step") == self.first_step:
            self._lose_since(0.0)
        self.part, self.begin, self.died_at, self.stalls = (
            TimePart.TRAINING,
            TimePart.RESTARTS,
            None,
            [],
        )
        self.started_at, self.first_step, self.has_lost = event["time"], event.get("step"), False
        self.trained_before_s = self.parts[TimePart.TRAINING]

    def _lose_since(self, last_step_at: float) -> None:
        """Attributes what processes that died have trained since their last step."""
        assert self.died_at is not None
        if last_step_at > self.started_at:
            self._move(max(0.0, self.died_at - last_step_at), TimePart.LOST)
        else:
            self._move(
                max(0.0, self.parts[TimePart.TRAINING] - self.trained_before_s), TimePart.LOST
            )

    def _stop(self, event: Mapping[str, Any]) -> None:
        """Attributes the last save, as far as the event `checkpoint` has not done so."""
        first = event["time"] - event["save_s"] - ROUNDING_S
        counted = sum(seconds for time, seconds in self.stalls if time >= first)
        self._move(max(0.0, event["save_s"] - counted), TimePart.CHECKPOINTS)
        self.has_saved = True
        at_boundary = event["status"] == STAGE_BOUNDARY
        self.part = TimePart.BOUNDARIES if at_boundary else TimePart.START
        self.begin = TimePart.BOUNDARIES if at_boundary else TimePart.RESTARTS


def time_until(events: Iterable[Mapping[str, Any]], moment: float) -> tuple[float, float | None]:
    """Returns the running seconds of a run until a moment, and the same times its processes.

    All attempts count: starts, validation, checkpoints, restarts and lost work. Time in which the
    run had no processes, as in a queue, does not.

    Args:
        events: rows of events.jsonl, in order.
        moment: in seconds since 1970.

    Returns:
        (seconds, device seconds). The latter are None if the number of processes is unknown.
    """
    clock, launched_at = RunClock(), None
    processes: float | None = 0.0
    before_s, device_s = 0.0, 0.0
    for event in events:
        if event["time"] > moment:
            break
        clock.add(event)
        if event["event"] == "launch":
            launched_at = event["time"]
        if event["event"] == "start":
            # The time from the launch to the start belongs to the new processes.
            starting_s = max(0.0, event["time"] - launched_at) if launched_at else 0.0
            running_s = clock.spent(last_step_at=None).running_s
            starting_s = min(starting_s, running_s - before_s)
            starting = number_or_none(event.get("world_size"))
            if processes is None or starting is None:
                processes = None
            else:
                device_s += (running_s - before_s - starting_s) * processes + starting_s * starting
                processes = starting
            before_s = running_s
    running_s = clock.spent(last_step_at=None, now=moment).running_s
    known = None if processes is None else device_s + (running_s - before_s) * processes
    return running_s, known
