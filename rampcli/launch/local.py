"""Runs a ramp on this machine: a set of agents per stage, until the run is complete or somebody stops it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.config.resolve import Resolved
from rampcli.errors import RampcliError
from rampcli.launch.agents import Agents
from rampcli.run_directory import RunDirectory, Tail

POLL_S = 0.1


class Observer:
    """Is told what happens while a run goes on; this one does nothing."""

    def on_start(self, stage: StagePlan, *, gpus: int) -> None:
        """A stage's processes are started; `gpus` is 0 on the CPU."""

    def on_row(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl was written."""

    def on_event(self, row: dict[str, Any]) -> None:
        """A row of events.jsonl was written."""


class Feed:
    """What the workers of a stage write down from now on, told to an observer.

    Workers first drop the rows of the steps that they will take again, then say that they start, then add rows. So the steps are read
    only after a start, from the first row on: where the file was cut is no byte that anybody knows beforehand.
    """

    def __init__(self, run: RunDirectory, observer: Observer) -> None:
        self.observer = observer
        self.events = Tail(run.events)
        self.events.skip()
        self.metrics = Tail(run.metrics)
        self.started_at_step: int | None = None

    def tell(self) -> None:
        """Pass on what was written since the last call."""
        for event in self.events.rows():
            if event["event"] == "start":
                self.started_at_step = event["step"]
            self.observer.on_event(event)
        if self.started_at_step is not None:
            for row in self.metrics.rows():
                if row["step"] > self.started_at_step:
                    self.observer.on_row(row)


@dataclass(slots=True)
class Interrupt:
    """The signal that asked the supervisor to stop, once one did."""

    signal: int | None = None


def supervise(
    resolved: Resolved, run: RunDirectory, *, gpus: list[str], one_stage: bool, observer: Observer
) -> tuple[dict[str, Any], Interrupt]:
    """Run stage after stage, each with its scheduled processes; returns the last state.json and what interrupted it.

    Raises:
        RampcliError: the workers of a stage failed; with what they said.
    """
    with _interrupts() as interrupt:
        while True:
            stage = resolved.plan.stage_at(run.consumed_samples())
            _run_stage(resolved, run, stage, gpus=gpus, observer=observer, interrupt=interrupt)
            state = run.read_state() or {}
            if state["status"] != "stage_boundary" or one_stage or interrupt.signal is not None:
                return state, interrupt


def _run_stage(
    resolved: Resolved, run: RunDirectory, stage: StagePlan, *, gpus: list[str], observer: Observer, interrupt: Interrupt
) -> None:
    feed = Feed(run, observer)
    log = run.logs / f"stage_{stage.stage}.log"
    observer.on_start(stage, gpus=len(gpus))
    agents = Agents(run.path, log, num_nodes=stage.num_nodes, devices=resolved.config.trainer.devices, gpus=gpus)
    try:
        exit_code, asked = None, False
        while exit_code is None:
            time.sleep(POLL_S)
            exit_code = agents.exit_code()
            feed.tell()
            if interrupt.signal is not None and not asked:
                agents.ask_to_stop()
                asked = True
    finally:
        agents.end()
    feed.tell()
    if exit_code != 0 and interrupt.signal is None:
        raise _failure(run, log)


def _failure(run: RunDirectory, log: Path) -> RampcliError:
    said = (run.read_state() or {}).get("error")
    if said is None:
        failure = RampcliError(f"the workers ended without saying why; the log is {log}")
    else:
        failure = RampcliError(f"the workers failed: {said['message']} (log: {log})", remedy=said["remedy"])
        failure.set_by = tuple(said["set_by"])
        failure.exit_code = said["exit_code"]
    return failure


@contextmanager
def _interrupts() -> Iterator[Interrupt]:
    """Note SIGINT and SIGTERM instead of dying of them."""
    interrupt = Interrupt()

    def note(number: int, _frame: object) -> None:
        interrupt.signal = number

    before: dict[int, Callable[..., Any] | int | None] = {}
    for caught in (signal.SIGINT, signal.SIGTERM):
        before[caught] = signal.signal(caught, note)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
