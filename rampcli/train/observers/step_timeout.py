"""Shortens how long ranks wait for each other once a stage has taken its first step."""

from datetime import timedelta

from rampcli.batch.training_plan import TrainingPlan
from rampcli.checkpoint.state import TrainingState
from rampcli.parallel.mesh import START_TIMEOUT, Meshes
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


class StepTimeout(LoopObserver):
    """Sets the timeout of collectives after each step, on every rank.

    Between the last step of a stage and the first one of the next, ranks may compile, validate and
    end, so `START_TIMEOUT` applies. No barrier is needed: a rank that has taken a step knows its
    gradient's norm, to which all ranks have contributed.

    Args:
        timeout: how long a rank may wait for others within a stage, after its first step.
    """

    def __init__(self, plan: TrainingPlan, meshes: Meshes, timeout: timedelta) -> None:
        self.plan = plan
        self.meshes = meshes
        self.timeout = timeout
        self._current = START_TIMEOUT

    def after_step(self, state: TrainingState, step: TakenStep) -> None:  # noqa: D102
        consumed = state.consumed_samples
        ends = self.plan.is_complete(consumed) or self.plan.stage_at(consumed) is not step.stage
        wanted = START_TIMEOUT if ends else self.timeout
        if wanted != self._current:
            self.meshes.set_timeout(wanted)
            self._current = wanted
