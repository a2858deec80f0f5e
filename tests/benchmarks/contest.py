"""Measures processor time and wall time of endless commands that take turns on one machine.

A contender is one command, or several that run at the same time. Each command is a tree of
processes that adds a line to a file for every row of its work, such as a training step. All but
one contender are stopped (SIGSTOP) while that one runs for some seconds. The order of each round
is drawn anew. All contenders thus see the same machine, within seconds, whatever else runs on it.

A turn ends at the end of a row. The measurement runs from the last row of the first turn to the
last row of the last turn, on a clock that runs only during the contender's turns. Start-up and the
first turn are not part of it, and no row is counted in part.

Other programs on the machine make rows slower and never faster, in processor time too, because
they take caches and memory. Each contender therefore has a mean over all rows, with what happens
only now and then, and a lower quartile: the cost of a row while the machine is quiet.
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

from harness import quartiles

from rampcli.machine.lifeline import die_with

POLL_S = 0.002
WARM_UP_ROWS = 3
START_S = 600.0
KEPT_LINES = 40
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class EndedError(Exception):
    """An endless command has ended or has not started. The message is its last output."""


@dataclass(frozen=True, slots=True)
class Mark:
    """State of a lane after a row.

    `rows` counts its rows, `cpu_s` its processor seconds, `active_s` the seconds of its turns.
    """

    rows: int
    cpu_s: float
    active_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command to run.

    `rows` is the file that gets a line per row. `environment` is laid over this process's.
    """

    words: Sequence[str]
    rows: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Lane:
    """A running command with a terminal of its own, as a user would see it.

    Attributes:
        marks: one for each row, or for several that came at once.
        turns: indices of the marks that end turns.
        count: number of rows.
        printed: the last lines that the command printed.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.marks: list[Mark] = []
        self.turns: list[int] = []
        self.count, self._read = 0, 0
        self.printed: deque[str] = deque(maxlen=KEPT_LINES)
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
        # Reading from a terminal fails when its last process ends.
        with suppress(OSError), open(terminal, encoding="utf-8", errors="replace") as lines:
            self.printed.extend(line.rstrip() for line in lines if line.strip())

    def wrote_row(self) -> bool:
        """Returns True if the command has written a new row.

        Raises:
            EndedError: the process has ended.
        """
        if self.process.poll() is not None:
            self._reader.join(5)
            raise EndedError("\n".join(self.printed) or f"exit code {self.process.returncode}")
        if not self.command.rows.exists() or self.command.rows.stat().st_size == self._read:
            return False
        with self.command.rows.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        self.count += new.count(b"\n")
        return b"\n" in new

    def processes(self) -> list[int]:
        """Returns the command's processes, parents first."""
        tree = [self.process.pid]
        for pid in tree:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):  # the thread has ended
                    tree += [int(child) for child in children.read_text().split()]
        return tree

    def cpu_s(self) -> float:
        """Returns user and system seconds of all processes, those that have ended included."""
        total = 0.0
        for pid in self.processes():
            with suppress(OSError):  # it has ended, and its time counts as its parent's
                # The clock of a process's processor time, computed as clock_getcpuclockid(3) does.
                total += time.clock_gettime(~pid << 3 | 2)
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[13:15])) / TICKS_PER_S  # children that have ended
        return total

    def signal(self, number: int) -> None:
        """Sends a signal to all processes, also to those that start meanwhile."""
        signalled: set[int] = set()
        while new := [pid for pid in self.processes() if pid not in signalled]:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            signalled.update(new)

    def end(self) -> None:
        """Kills all processes."""
        for pid in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass(kw_only=True, slots=True)
class Contender:
    """Commands that run at the same time.

    Attributes:
        name: name in the table.
        commands: commands to run.
        samples_per_row: training samples in a row of each command.
    """

    name: str
    commands: Sequence[Command]
    samples_per_row: int
    lanes: list[Lane] = field(default_factory=list)
    active_s: float = 0.0

    def start(self) -> None:
        """Starts the commands, waits for their first rows, and stops them.

        Raises:
            EndedError: a command ended or took too long.
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
        """Lets the commands run for some seconds, and then to the end of a row each.

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
        """Kills all commands."""
        for lane in self.lanes:
            lane.end()

    def rows(self) -> int:
        """Returns the number of rows that were measured, over all lanes."""
        return sum(_difference(lane, 0, -1).rows for lane in self.lanes)

    def turns(self) -> int:
        """Returns the number of turns that were measured."""
        return len(self.lanes[0].turns) - 1

    def cpu_s(self, since: int = 0, until: int = -1) -> float:
        """Returns the processor seconds per sample between the ends of two turns."""
        passed = [_difference(lane, since, until) for lane in self.lanes]
        return (
            sum(each.cpu_s for each in passed)
            / sum(each.rows for each in passed)
            / self.samples_per_row
        )

    def wall_s(self, since: int = 0, until: int = -1) -> float:
        """Returns the seconds per sample of all lanes between the ends of two turns."""
        passed = [_difference(lane, since, until) for lane in self.lanes]
        return 1 / sum(each.rows / each.active_s for each in passed) / self.samples_per_row

    def quiet_cpu_s(self) -> float:
        """Returns the lower quartile over rows of processor seconds per sample."""
        return (
            statistics.fmean(
                _lower_quartile([each.cpu_s / each.rows for each in _each_row(lane)])
                for lane in self.lanes
            )
            / self.samples_per_row
        )

    def quiet_wall_s(self) -> float:
        """Returns the lower quartile over rows of seconds per sample of all lanes."""
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
    """Gives each contender a turn that does not count, then `rounds` turns.

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
    """How many times faster one contender is than another.

    `quiet` compares lower quartiles of rows, `mean` all turns; `quartiles` are over the rounds.
    """

    quiet: float
    mean: float
    quartiles: tuple[float, float, float]

    def __str__(self) -> str:
        """Returns text such as `1.030  1.034 (1.020 1.033 1.051)`."""
        low, middle, high = self.quartiles
        return f"{self.quiet:.3f}  {self.mean:.3f} ({low:.3f} {middle:.3f} {high:.3f})"


def cpu_ratio(contender: Contender, other: Contender) -> Ratio:
    """Compares processor time per sample."""
    rounds = [
        other.cpu_s(turn, turn + 1) / contender.cpu_s(turn, turn + 1)
        for turn in range(contender.turns())
    ]
    return Ratio(
        other.quiet_cpu_s() / contender.quiet_cpu_s(),
        other.cpu_s() / contender.cpu_s(),
        quartiles(rounds),
    )


def wall_ratio(contender: Contender, other: Contender) -> Ratio:
    """Compares wall time per sample."""
    rounds = [
        other.wall_s(turn, turn + 1) / contender.wall_s(turn, turn + 1)
        for turn in range(contender.turns())
    ]
    return Ratio(
        other.quiet_wall_s() / contender.quiet_wall_s(),
        other.wall_s() / contender.wall_s(),
        quartiles(rounds),
    )


def _lower_quartile(values: Sequence[float]) -> float:
    return quartiles(values)[0]
