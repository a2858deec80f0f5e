"""Collects Python's garbage after the same steps on every rank."""

import gc

from rampcli.checkpoint.state import TrainingState
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


class GarbageCollection(LoopObserver):
    """Replaces Python's automatic collection, which would stop each rank in another step.

    All ranks wait for the slowest one in every step, so each of these stops would cost all of them.

    A micro batch leaves functions and other small objects behind, but no tensors.

    Args:
        every_micro_batches: collect at the end of a step after this many micro batches or more.
    """

    def __init__(self, every_micro_batches: int) -> None:
        self.every_micro_batches = every_micro_batches
        self._micro_batches = 0

    def at_start(self, state: TrainingState) -> None:  # noqa: ARG002, D102
        gc.collect()
        gc.freeze()  # model and optimiser live until the end, so the collector need not scan them
        gc.disable()

    def after_step(self, state: TrainingState, step: TakenStep) -> None:  # noqa: ARG002, D102
        self._micro_batches += step.batch.split.accumulate_grad_batches
        if self._micro_batches >= self.every_micro_batches:
            self._micro_batches = 0
            gc.collect()

    def at_end(self, state: TrainingState, status: str, *, save_s: float) -> None:  # noqa: ARG002, D102
        gc.enable()
