"""Reports the progress of a run while it trains."""

from collections.abc import Callable, Iterable
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.launch.elastic import World
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import Tail, end_of_step

TRACKER_OFF = "tracker_off"
"""Kind of the event of a tracker that has failed."""


class Observer:
    """Receives the events of a run on this machine, in the thread that called `rampcli.run`.

    The methods here do nothing. An exception in one of them stops the run: it saves, then
    `rampcli.run` raises the exception.
    """

    def on_start(self, stage: StagePlan, world: World, *, gpus: int) -> None:
        """Called when processes start to train a stage, also after a crash.

        Args:
            stage: the stage; `stage.stage` is its number, from 0, and `stage.global_batch_size` its
                samples per step.
            world: the processes; `world.ranks` is their number.
            gpus: GPUs that they use; 0 on the CPU.
        """

    def on_row(self, row: dict[str, Any]) -> None:
        """Called for each new row of metrics.jsonl.

        Args:
            row: columns of the step by name, such as `step`, `consumed_samples` and `loss`.
        """

    def on_event(self, row: dict[str, Any]) -> None:
        """Called for each new row of events.jsonl.

        Args:
            row: fields of the event by name; `event` is its kind, such as `"validation"`.
        """

    def on_poll(self) -> None:
        """Called several times a second while processes run, after the rows that are new."""


class Observers(Observer):
    """Passes everything to several observers.

    An observer that raises an exception stops the run, which saves first, and receives nothing
    more.

    Attributes:
        observers: observers that have not failed.
        stop: asks the run to stop.
        error: the first exception, or None.
    """

    def __init__(self, observers: Iterable[Observer], *, stop: Callable[[], object]) -> None:
        self.observers = list(observers)
        self.stop = stop
        self.error: Exception | None = None

    def on_start(self, stage: StagePlan, world: World, *, gpus: int) -> None:
        """Calls `on_start` of each observer."""
        self._call(lambda observer: observer.on_start(stage, world, gpus=gpus))

    def on_row(self, row: dict[str, Any]) -> None:
        """Calls `on_row` of each observer."""
        self._call(lambda observer: observer.on_row(row))

    def on_event(self, row: dict[str, Any]) -> None:
        """Calls `on_event` of each observer."""
        self._call(lambda observer: observer.on_event(row))

    def on_poll(self) -> None:
        """Calls `on_poll` of each observer."""
        self._call(lambda observer: observer.on_poll())

    def _call(self, method: Callable[[Observer], None]) -> None:
        for observer in self.observers[:]:
            try:
                method(observer)
            except Exception as error:
                self.observers.remove(observer)
                self.error = self.error or error
                self.stop()


class Feed:
    """Passes new rows of a run's files to an observer.

    Workers that resume first drop the rows of the steps that they repeat, then write a "start"
    event, then append rows. So metrics are read only after a start event, from its step on.

    Attributes:
        step: newest step that the workers have taken; None before their start event.
        row: newest row of metrics.jsonl that the workers wrote, or None.
    """

    def __init__(self, run: RunDirectory, observer: Observer) -> None:
        self.observer = observer
        self.events = Tail(run.events)
        self.events.skip()
        self.metrics = Tail(run.metrics)
        self.step: int | None = None
        self.row: dict[str, Any] | None = None

    def poll(self) -> None:
        """Passes on the rows that were written since the last call."""
        for event in self.events.rows():
            if event["event"] == "start":
                self.step = event["step"]
                path = self.metrics.path
                self.metrics = Tail(path, end_of_step(path, event["step"]))
            if event["event"] != TRACKER_OFF:  # the observer has heard of it from `Trackers`
                self.observer.on_event(event)
        if self.step is not None:
            for row in self.metrics.rows():
                if row["step"] > self.step:
                    self.step, self.row = row["step"], row
                    self.observer.on_row(row)
        self.observer.on_poll()
