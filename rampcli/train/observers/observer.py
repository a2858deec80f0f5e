"""The protocol of everything that watches the training loop."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.checkpoint.save import SavedCheckpoint
from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import RunDirectory
from rampcli.train.step import StepResult, TakenStep, Validation


class LoopObserver:
    """Watches the training loop. Override what you need; everything else does nothing.

    Each rank has its own observers. An observer that exists on some ranks only must not communicate
    with other ranks.
    """

    def at_start(self, state: TrainingState) -> None:
        """Called once, when the newest checkpoint is loaded and training is about to start."""

    def at_stage(self, state: TrainingState, stage: StagePlan) -> None:
        """Called before the first step of each stage that these processes train."""

    def after_compile(self, state: TrainingState, *, compile_s: float) -> None:
        """Called after the layers were compiled for a micro batch size."""

    def before_step(self, state: TrainingState) -> None:
        """Called before each step, and before its samples are read."""

    def before_update(self, state: TrainingState, result: StepResult) -> str | None:
        """Called when a step's gradient is known. Returns why the step must be skipped, or None.

        A skipped step changes neither weights nor optimiser state, but its samples count as
        consumed. Every rank must return the same.
        """

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Called after each step, skipped ones too. `state` includes the step."""

    def after_validation(self, state: TrainingState, validation: Validation) -> None:
        """Called after each validation, once for each corpus."""

    def after_evaluation(
        self, state: TrainingState, results: Mapping[str, float | str | None]
    ) -> None:
        """Called after each evaluation of reinforcement learning, with its results by name."""

    def after_checkpoint(self, saved: SavedCheckpoint) -> None:
        """Called once a checkpoint is complete, possibly by another thread."""

    def at_end(self, state: TrainingState, status: str, *, save_s: float) -> None:
        """Called when training ends in an orderly way, after the last save.

        Args:
            status: status for state.json: complete, stage_boundary or preempted.
            save_s: seconds that the last save took.
        """


class ObserverList(LoopObserver):
    """Calls several observers in their order.

    Before an update, the first reason to skip it counts.
    """

    def __init__(self, observers: Sequence[LoopObserver]) -> None:
        self.observers = tuple(observers)
        for name in vars(LoopObserver):
            if not name.startswith("_"):
                setattr(self, name, partial(self._call_all, name))

    def _call_all(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        answers = [getattr(each, method)(*arguments, **keywords) for each in self.observers]
        return next((answer for answer in answers if answer is not None), None)


def record_event(run: RunDirectory, kind: str, state: TrainingState, **facts: Any) -> None:
    """Appends an event to events.jsonl, with the step and the samples consumed at that time."""
    run.append_event(kind, step=state.step, consumed_samples=state.consumed_samples, **facts)
