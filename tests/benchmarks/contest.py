"""Endless commands take turns on one machine: how much processor time and wall time a row of each costs.

A contender is one command or several that run at the same time. Each is a tree of processes that adds a line to a file for every row of
its work. All but one are stopped (SIGSTOP) while that one goes on for some seconds, and the order of a round is drawn anew. So all of them
see the same machine, within seconds, whatever else runs on it.

A turn ends when a row does. What is measured lies between the last rows of two turns, on a clock that runs only in the contender's turns;
so starting and the first turn are not in it, and no row is counted in parts.

Others on the machine make rows dearer and never cheaper, in processor time too: they take caches and memory. So each contender has a mean
over all rows, with what happens only now and then, and a lower quartile of the rows, which says what a row costs while it is quiet.
"""

import os
import random
import signal
import statistics
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from rampcli.lifeline import die_with

POLL_S = 0.002
WARM_UP_ROWS = 3
START_S = 600.0
KEPT_LINES = 40
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EndedError(Exception):
    """A command that should go on for ever has ended, or does not begin; what it printed last."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a lane stood when it had written a row: its rows, its processor time, and the time of its turns, in seconds."""

    rows: int
    cpu_s: float
    active_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Words, the file that gets a line for each row, and variables over those of this process."""

    words: Sequence[str]
    rows: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Lane:
    """One command that runs, in a terminal of its own, as a user would see it.

    Attributes:
        marks: one for each row, or for several where they come at once.
        turns: the places of those that end turns.
        count: the rows.
        said: the last lines that were printed.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.marks: list[Mark] = []
        self.turns: list[int] = []
        self.count, self._read = 0, 0
        self.said: deque[str] = deque(maxlen=KEPT_LINES)
        terminal, theirs = os.openpty()
        environment = {
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": "140",
            "LINES": "40",
            **command.environment,
        }
        self.process = subprocess.Popen(
            command.words, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
        os.close(theirs)
        self._reader = threading.Thread(target=self._follow, args=(terminal,), daemon=True)
        self._reader.start()

    def _follow(self, terminal: int) -> None:
        with (
            suppress(OSError),
            open(terminal, encoding="utf-8", errors="replace") as lines,
        ):  # an error is how a terminal ends
            self.said.extend(line.rstrip() for line in lines if line.strip())

    def wrote_row(self) -> bool:
        """Whether there is a new row.

        Raises:
            EndedError: the process has ended.
        """
        if self.process.poll() is not None:
            self._reader.join(5)
            raise EndedError("\n".join(self.said) or f"exit code {self.process.returncode}")
        if not self.command.rows.exists() or self.command.rows.stat().st_size == self._read:
            return False
        with self.command.rows.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self.count += new.count(b"\n")
        return b"\n" in new

    def processes(self) -> list[int]:
        """The command's processes, each after the one that started it."""
        tree = [self.process.pid]
        for pid in tree:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):  # the thread has ended
                    tree += [int(child) for child in children.read_text().split()]
        return tree

    def cpu_s(self) -> float:
        """User and system time of all processes, and of those that have ended."""
        total = 0.0
        for pid in self.processes():
            with suppress(OSError):  # it has ended, and its parent has its time
                total += time.clock_gettime(
                    ~pid << 3 | 2
                )  # the clock of a process's processor time, as clock_getcpuclockid(3) has it
                total += (
                    sum(
                        map(
                            int,
                            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15],
                        )
                    )
                    / TICKS_PER_S
                )
        return total

    def signal(self, number: int) -> None:
        """Send a signal to all processes; also to those that are started meanwhile."""
        told: set[int] = set()
        while new := [pid for pid in self.processes() if pid not in told]:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            told.update(new)

    def end(self) -> None:
        """Kill all processes."""
        for pid in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass(kw_only=True, slots=True)
class Contender:
    """Commands that run at the same time.

    Attributes:
        name: what it is called.
        commands: what it runs.
        samples_per_row: of each command.
    """

    name: str
    commands: Sequence[Command]
    samples_per_row: int
    lanes: list[Lane] = field(default_factory=list)
    active_s: float = 0.0

    def start(self) -> None:
        """Start, take the first rows, and stop.

        Raises:
            EndedError: a command ended, or took too long.
        """
        self.lanes = [Lane(command) for command in self.commands]
        deadline = time.monotonic() + START_S
        while any(lane.count < WARM_UP_ROWS for lane in self.lanes):
            time.sleep(POLL_S)
            for lane in self.lanes:
                lane.wrote_row()
            if time.monotonic() > deadline:
                raise EndedError(f"no {WARM_UP_ROWS} rows within {START_S:.0f} s")
        self._signal(signal.SIGSTOP)

    def take_turn(self, seconds: float) -> None:
        """Go on for so long, and to the end of a row of each lane.

        Raises:
            EndedError: a command ended.
        """
        began = time.monotonic()
        self._signal(signal.SIGCONT)
        unfinished = set(self.lanes)
        while unfinished:
            time.sleep(POLL_S)
            for lane in self.lanes:
                if lane.wrote_row():
                    turn_s = time.monotonic() - began
                    lane.marks.append(Mark(lane.count, lane.cpu_s(), self.active_s + turn_s))
                    if turn_s >= seconds:
                        unfinished.discard(lane)
        self._signal(signal.SIGSTOP)
        self.active_s += time.monotonic() - began
        for lane in self.lanes:
            lane.turns.append(len(lane.marks) - 1)

    def _signal(self, number: int) -> None:
        for lane in self.lanes:
            lane.signal(number)

    def end(self) -> None:
        """Kill what runs."""
        for lane in self.lanes:
            lane.end()

    def rows(self) -> int:
        """Of all lanes, as far as they were measured."""
        return sum(_difference(lane, 0, -1).rows for lane in self.lanes)

    def turns(self) -> int:
        """That were measured."""
        return len(self.lanes[0].turns) - 1

    def cpu_s(self, since: int = 0, until: int = -1) -> float:
        """Processor seconds per sample from one turn's end to another's."""
        passed = [_difference(lane, since, until) for lane in self.lanes]
        return (
            sum(each.cpu_s for each in passed)
            / sum(each.rows for each in passed)
            / self.samples_per_row
        )

    def wall_s(self, since: int = 0, until: int = -1) -> float:
        """Seconds per sample from one turn's end to another's, all lanes together."""
        passed = [_difference(lane, since, until) for lane in self.lanes]
        return 1 / sum(each.rows / each.active_s for each in passed) / self.samples_per_row

    def quiet_cpu_s(self) -> float:
        """Processor seconds per sample, the lower quartile of rows."""
        return (
            statistics.fmean(
                _lower_quartile([each.cpu_s / each.rows for each in _each_row(lane)])
                for lane in self.lanes
            )
            / self.samples_per_row
        )

    def quiet_wall_s(self) -> float:
        """Seconds per sample, the lower quartile of rows, all lanes together."""
        rows_s = [
            _lower_quartile([each.active_s / each.rows for each in _each_row(lane)])
            for lane in self.lanes
        ]
        return 1 / sum(1 / row_s for row_s in rows_s) / self.samples_per_row


def _difference(lane: Lane, since: int, until: int) -> Mark:
    return _minus(lane.marks[lane.turns[until]], lane.marks[lane.turns[since]])


def _each_row(lane: Lane) -> list[Mark]:
    return [_minus(one, before) for before, one in pairwise(lane.marks[lane.turns[0] :])]


def _minus(one: Mark, before: Mark) -> Mark:
    return Mark(one.rows - before.rows, one.cpu_s - before.cpu_s, one.active_s - before.active_s)


def take_turns(contenders: Sequence[Contender], *, rounds: int, turn_s: float) -> None:
    """One turn each that does not count, then `rounds` of them.

    Raises:
        EndedError: a command ended.
    """
    order, drawn = list(contenders), random.Random(1)
    for _ in range(rounds + 1):
        drawn.shuffle(order)
        for contender in order:
            contender.take_turn(turn_s)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster a contender is than another: while it is quiet, over all turns, and the quartiles of the rounds."""

    quiet: float
    mean: float
    quartiles: tuple[float, float, float]

    def __str__(self) -> str:
        """Such as `1.030  1.034 (1.020 1.033 1.051)`."""
        low, middle, high = self.quartiles
        return f"{self.quiet:.3f}  {self.mean:.3f} ({low:.3f} {middle:.3f} {high:.3f})"


def cpu_ratio(contender: Contender, other: Contender) -> Ratio:
    """By processor time per sample."""
    rounds = [
        other.cpu_s(turn, turn + 1) / contender.cpu_s(turn, turn + 1)
        for turn in range(contender.turns())
    ]
    return Ratio(
        other.quiet_cpu_s() / contender.quiet_cpu_s(),
        other.cpu_s() / contender.cpu_s(),
        _quartiles(rounds),
    )


def wall_ratio(contender: Contender, other: Contender) -> Ratio:
    """By time per sample."""
    rounds = [
        other.wall_s(turn, turn + 1) / contender.wall_s(turn, turn + 1)
        for turn in range(contender.turns())
    ]
    return Ratio(
        other.quiet_wall_s() / contender.quiet_wall_s(),
        other.wall_s() / contender.wall_s(),
        _quartiles(rounds),
    )


def _lower_quartile(values: Sequence[float]) -> float:
    return _quartiles(values)[0]


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
