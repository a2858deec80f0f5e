"""Shortens how long ranks wait for each other once a stage has taken its first step."""

from datetime import timedelta

from rampcli.batch.training_plan import TrainingPlan
from rampcli.checkpoint.state import TrainingState
from rampcli.parallel.mesh import Meshes
from rampcli.settings.launch import LaunchConfig
from rampcli.train.observers.observer import LoopObserver
from rampcli.train.step import TakenStep


class StepTimeout(LoopObserver):
    """Sets the timeout of collectives after each step, on every rank.

    Between the last step of a stage and the first one of the next, ranks may compile, validate and
    end, so `launch.start_timeout_s` applies. No barrier is needed: a rank that has taken a step
    knows its gradient's norm, to which all ranks have contributed.
    """

    def __init__(self, plan: TrainingPlan, meshes: Meshes, launch: LaunchConfig) -> None:
        self.plan = plan
        self.meshes = meshes
        self.launch = launch
        self._current_s = launch.start_timeout_s

    def after_step(self, state: TrainingState, step: TakenStep) -> None:  # noqa: D102
        consumed = state.consumed_samples
        ends = self.plan.is_complete(consumed) or self.plan.stage_at(consumed) is not step.stage
        wanted_s = self.launch.start_timeout_s if ends else self.launch.step_timeout_s
        if wanted_s != self._current_s:
            self.meshes.set_timeout(timedelta(seconds=wanted_s))
            self._current_s = wanted_s
