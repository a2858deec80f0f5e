"""What is told of a run while it goes on."""

from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.run_directory import RunDirectory, Tail


class Observer:
    """Is told what happens while a run goes on; this one does nothing."""

    def on_start(self, stage: StagePlan, *, gpus: int) -> None:
        """A stage's processes are started; `gpus` is 0 on the CPU."""

    def on_row(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl was written."""

    def on_event(self, row: dict[str, Any]) -> None:
        """A row of events.jsonl was written."""


class Feed:
    """What is written down from now on about workers that are started, told to an observer.

    Workers first drop the rows of the steps that they will take again, then say that they start, then add rows. So the steps are read
    only after a start, from the first row on: where the file was cut is no byte that anybody knows beforehand.

    Attributes:
        step: that the workers have reached; None until they say that they start.
        row: of metrics.jsonl that is the last they wrote; None until they have.
    """

    def __init__(self, run: RunDirectory, observer: Observer) -> None:
        self.observer = observer
        self.events = Tail(run.events)
        self.events.skip()
        self.metrics = Tail(run.metrics)
        self.step: int | None = None
        self.row: dict[str, Any] | None = None

    def tell(self) -> None:
        """Pass on what was written since the last call."""
        for event in self.events.rows():
            if event["event"] == "start":
                self.step = event["step"]
                self.metrics = Tail(self.metrics.path)
            self.observer.on_event(event)
        if self.step is not None:
            for row in self.metrics.rows():
                if row["step"] > self.step:
                    self.step, self.row = row["step"], row
                    self.observer.on_row(row)
