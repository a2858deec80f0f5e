"""The trackers of a run: one process for each of them, which logs the rows that workers write.

A tracker may be slow, hang or crash. In a process of its own it neither delays nor ends training,
and it can be killed.
"""

import importlib.util
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rampcli.errors import RampcliError, reason_of
from rampcli.launch.observer import TRACKER_OFF, Observer
from rampcli.launch.workers import POLL_S, WorkerLog
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import StopSignals
from rampcli.plugins.extras import requiring
from rampcli.plugins.trackers import TRACKERS
from rampcli.runs.directory import RunDirectory, event_row
from rampcli.runs.rows import last_rows
from rampcli.tracking.tracker import begin_position, read_position

CATCH_UP_S = 20.0
"""Seconds that trackers have to log the last rows once a run has ended. Then they are killed."""
STOPPED_CATCH_UP_S = 5.0
"""The same if the run was asked to stop: the sender may soon kill the processes that still run."""
PROGRAM = "rampcli.launch.track"


def check_packages(names: Sequence[str]) -> None:
    """Checks that this Python has the packages of built-in trackers, without importing them.

    Raises:
        UsageError: it does not.
    """
    for name in names:
        package = TRACKERS[name].package if name in TRACKERS else None
        if package is None:
            continue
        with requiring(package, purpose=f"logging.trackers=[{name}]"):
            spec = importlib.util.find_spec(package)
            # A folder of that name is a namespace package: wandb makes one for its files.
            if spec is None or spec.origin is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningTracker:
    """The process of a tracker, and the log that it prints to."""

    name: str
    process: subprocess.Popen[bytes]
    log: WorkerLog


@dataclass(slots=True)
class Trackers:
    """The running trackers of a run. As a context, it starts them, and waits for them at the end.

    Enter it before workers start. A tracker that fails is switched off with one warning: the event
    `tracker_off`.

    Attributes:
        names: names in `TRACKERS`, or of extensions.
        observer: receives the warnings.
        signals: stop signals received so far. After the second, trackers are killed at once.
    """

    run: RunDirectory
    names: Sequence[str]
    observer: Observer
    signals: StopSignals = field(default_factory=StopSignals)
    _running: list[RunningTracker] = field(default_factory=list)

    def __enter__(self) -> "Trackers":
        for name in self.names:
            try:
                self._running.append(self._start(name))
            except (OSError, RampcliError) as error:
                self._warn(name, f"it cannot start: {reason_of(error)}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> None:
        """Writes a warning for each tracker that has failed."""
        for tracker in [one for one in self._running if one.process.poll() is not None]:
            self._running.remove(tracker)
            if tracker.process.returncode:
                reason = f"it ended with code {tracker.process.returncode}"
                self._warn(tracker.name, f"{reason} ({tracker.log.describe()})")

    def close(self) -> None:
        """Waits for a time until the trackers have logged everything, and ends them."""
        for tracker in self._running:
            assert tracker.process.stdin is not None
            # A process that has already exited is noticed by its exit code.
            with suppress(BrokenPipeError), tracker.process.stdin:
                tracker.process.stdin.write(f"{self._patience_s()}\n".encode())
        began = time.monotonic()
        while self._running and time.monotonic() - began < self._patience_s():
            self.poll()
            time.sleep(POLL_S)
        for tracker in self._running:
            tracker.process.kill()
            tracker.process.wait()
            lag = self._describe_lag(tracker, waited_s=time.monotonic() - began)
            self._warn(tracker.name, lag)
        self._running = []

    def _patience_s(self) -> float:
        """Returns how long to wait for trackers once the run has ended."""
        if self.signals.at_once:
            return 0.0
        return CATCH_UP_S if self.signals.signal is None else STOPPED_CATCH_UP_S

    def _start(self, name: str) -> RunningTracker:
        """Starts the process of a tracker."""
        begin_position(self.run, name)
        path = self.run.logs / f"tracker_{name}.log"
        self.run.make_folder(self.run.logs)
        with self.run.open_to_append(path) as output:
            log = WorkerLog(path)
            process = subprocess.Popen(
                python_command(PROGRAM, str(self.run.path), name),
                env=safe_environment(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
            )
        return RunningTracker(name=name, process=process, log=log)

    def _describe_lag(self, tracker: RunningTracker, *, waited_s: float) -> str:
        """Returns how far a tracker came that was killed at the end of a run."""
        log = tracker.log.describe(quote=False)
        try:
            position = read_position(self.run, tracker.name)
            reached = position.reached if position else 0
            last = next(iter(last_rows(self.run.metrics, 1)), {"step": 0})["step"]
        except RampcliError as error:
            return f"{reason_of(error)} ({log})"
        return (
            f"it had reached step {reached} of {last} when the run ended, and did not finish within"
            f" {waited_s:.0f} s; the same command continues it ({log})"
        )

    def _warn(self, name: str, reason: str) -> None:
        """Writes the event `tracker_off`, and tells the observer. A `Feed` does not repeat it."""
        reason = f"the tracker {name} is switched off: {reason}"
        row = event_row(TRACKER_OFF, tracker=name, reason=reason)
        with suppress(OSError):  # the disk may be full
            self.run.append_row(self.run.events, row)
        self.observer.on_event(row)
