"""The life of a run, write by write: it trains, validates, saves, crashes, is killed, resumes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rampcli.batch.training_plan import TrainingPlan
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.runs.directory import RunDirectory
from run_files import coming, metrics_row, state

ACTS = ("step", "validate", "save", "wait", "crash", "kill", "stop")
"""What a run may do next. It starts before it does one of the first three."""


@dataclass
class Life:
    """Writes the files of a run, and tells an observer of it, without training.

    Attributes:
        plan: plan of the run. Its directory has config.yaml and plan.json.
        run: its directory.
        watch: returns the observer of a command that trains the run.
    """

    plan: TrainingPlan
    run: RunDirectory
    watch: Callable[[], Observer]
    observer: Observer | None = None
    time: float = 1000.0
    step: int = 0
    samples: int = 0
    saved: tuple[int, int] = (0, 0)
    trains: bool = False
    last_step_at: float | None = None

    def after_each_write(self, acts: Iterable[str]) -> Iterator[None]:
        """Does what the acts say, and yields after each change of a file."""
        for act in acts:
            if act in ("step", "validate", "save") and not self.trains:
                yield from self._start()
            if not self.plan.is_complete(self.samples):
                yield from getattr(self, f"_{act}")()

    def _event(self, kind: str, *, after_s: float = 0.0, **facts: Any) -> Iterator[None]:
        self.time += after_s
        place = {} if kind in ("launch", "exit", "fault") else self._place()
        row = {"event": kind, "time": self.time, **place, **facts}
        self.run.append_row(self.run.events, row)
        if self.observer is not None:
            self.observer.on_event(row)
        yield

    def _place(self) -> dict[str, int]:
        return {"step": self.step, "consumed_samples": self.samples}

    def _write_state(self, status: str) -> None:
        stage = self.plan.stage_at(self.samples).stage
        self.run.write_state(state(status=status, **self._place(), stage=stage, next=coming()))

    def _start(self) -> Iterator[None]:
        lost, self.trains = self.step - self.saved[0], True
        self.step, self.samples = self.saved
        stage = self.plan.stage_at(self.samples)
        self._write_state("running")
        self.observer = self.observer or self.watch()
        self.observer.on_start(stage, World.planned(stage), gpus=0)
        nodes, ranks = stage.num_nodes, stage.world_size
        yield from self._event(
            "launch", after_s=1.0, stage=stage.stage, num_nodes=nodes, world_size=ranks
        )
        if lost:
            self.run.drop_rows_after(self.step)  # appends an event of the present time
            self.run.events.write_text(_without_last(self.run.events.read_text()))
            yield
            yield from self._event(
                "lost", after_s=1.0, steps=lost, lost_s=2.0 * lost, last_step_at=self.last_step_at
            )
        yield from self._event("start", after_s=3.0, device="cpu", device_name="a processor")
        yield from self._event("stage", stage=stage.stage, world_size=stage.world_size)

    def _step(self) -> Iterator[None]:
        stage = self.plan.stage_at(self.samples)
        begins = self.step == stage.first_step > 0
        seconds = 1.0 + self.step % 7 / 8
        self.time += seconds
        self.step, self.samples = self.step + 1, self.samples + stage.global_batch_size
        row = metrics_row(
            **self._place(),
            stage=stage.stage,
            global_batch_size=stage.global_batch_size,
            world_size=stage.world_size,
            loss=None if self.step % 11 == 5 else 5.0 / self.step,
            step_time_s=seconds,
            samples_per_s=stage.global_batch_size / seconds,
            tokens_per_s=128 * stage.global_batch_size / seconds,
        )
        row |= {"time": self.time, "data_time_s": 0.125, "mfu": 0.25, "mfu_causal": None}
        self.run.append_row(self.run.metrics, row)
        self.last_step_at = self.time
        if self.observer is not None:
            self.observer.on_row(row)
        yield
        if begins:
            yield from self._event("boundary", lost_s=5.0 + seconds)
        if self.plan.is_complete(self.samples):
            return
        if self.plan.ends_processes(stage, self.samples):
            yield from self._save()
            yield from self._end("stage_boundary")

    def _validate(self) -> Iterator[None]:
        for corpus, loss in (("wiki", 6.0 / (self.step + 1)), ("code", None)):
            facts = {"loss": loss, "bits_per_byte": loss, "validation_s": 0.5}
            yield from self._event("validation", after_s=0.5, corpus=corpus, **facts)

    def _save(self) -> Iterator[None]:
        self.saved = self.step, self.samples
        yield from self._event("checkpoint", after_s=0.25, save_s=0.5, stall_s=0.25)

    def _wait(self) -> Iterator[None]:
        self.time += 30.0
        yield

    def _crash(self) -> Iterator[None]:
        if self.trains:
            yield from self._event("exit", after_s=0.5, exit_code=1)
            yield from self._event("fault", reason="rank 0 was killed")
            self.trains = False
            yield from self._start()

    def _kill(self) -> Iterator[None]:
        self.trains, self.observer = False, None
        yield

    def _stop(self) -> Iterator[None]:
        if self.trains:
            yield from self._save()
            yield from self._end("preempted")
            self.observer = None

    def _end(self, status: str) -> Iterator[None]:
        self._write_state(status)
        yield from self._event("stop", status=status, save_s=0.25)
        yield from self._event("exit", after_s=0.25, exit_code=0)
        self.trains = False


def _without_last(lines: str) -> str:
    return "".join(lines.splitlines(keepends=True)[:-1])
