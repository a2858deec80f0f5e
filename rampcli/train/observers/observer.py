"""The protocol of everything that watches the training loop."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rampcli.batch.training_plan import StagePlan
from rampcli.checkpoint.save import SavedCheckpoint
from rampcli.checkpoint.state import TrainingState
from rampcli.runs.directory import RunDirectory
from rampcli.train.step import TakenStep, Validation


class LoopObserver:
    """Watches the training loop. Override what you need; everything else does nothing.

    Each rank has its own observers. An observer that exists on some ranks only must not communicate
    with other ranks.

    To add an observer of the training loop: a subclass in `rampcli/train/observers`, and its object
    in `rampcli/worker/assemble.py:build_observers`.
    """

    def at_start(self, state: TrainingState) -> None:
        """Called once, when the newest checkpoint is loaded and training is about to start."""

    def at_stage(self, state: TrainingState, stage: StagePlan) -> None:
        """Called before the first step of each stage that these processes train."""

    def after_compile(self, state: TrainingState, *, compile_s: float) -> None:
        """Called after the layers were compiled for a micro batch size."""

    def before_step(self, state: TrainingState) -> None:
        """Called before each step, and before its samples are read."""

    def needs(self, step: int) -> bool:  # noqa: ARG002
        """Returns whether `after_step` must be called for this step before the next one begins.

        A GPU may otherwise compute the next step already. Every rank must return the same.
        """
        return False

    def after_step(self, state: TrainingState, step: TakenStep) -> None:
        """Called after each step, skipped ones too, once its numbers are known.

        `state` includes the step. On a GPU, the next step may have begun, as of `needs`.
        """

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
    """Calls several observers in their order."""

    def __init__(self, observers: Sequence[LoopObserver]) -> None:
        self.observers = tuple(observers)
        for name in vars(LoopObserver):
            if not name.startswith("_"):
                setattr(self, name, partial(self._call_all, name))

    def _call_all(self, method: str, *arguments: Any, **keywords: Any) -> bool:
        """Returns whether one of them returns True."""
        answers = [getattr(each, method)(*arguments, **keywords) for each in self.observers]
        return any(answers)


def record_event(run: RunDirectory, kind: str, state: TrainingState, **facts: Any) -> None:
    """Appends an event to events.jsonl, with the step and the samples consumed at that time."""
    run.append_event(kind, step=state.step, consumed_samples=state.consumed_samples, **facts)
