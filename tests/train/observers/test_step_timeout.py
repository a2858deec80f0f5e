from datetime import timedelta
from types import SimpleNamespace

from rampcli.checkpoint.state import TrainingState
from rampcli.planning.run_plan import run_plan
from rampcli.train.observers.step_timeout import StepTimeout

START, STEP = timedelta(seconds=60), timedelta(seconds=5)


class Meshes:
    """Keeps the timeouts that are set."""

    def __init__(self):
        self.timeouts = []

    def set_timeout(self, timeout):
        self.timeouts.append(timeout)


def test_ranks_wait_long_at_the_start_and_the_end_of_a_stage_and_shortly_within(small_llama):
    small_llama.model.rampup_batch_size = [4, 4, 16]
    small_llama.model.global_batch_size = 8
    small_llama.data.micro_batch_size = 4
    small_llama.trainer.max_samples = 40
    small_llama.launch.start_timeout_s = START.total_seconds()
    small_llama.launch.step_timeout_s = STEP.total_seconds()
    plan, meshes = run_plan(small_llama).plan, Meshes()
    observer, seen = StepTimeout(plan, meshes, small_llama.launch), []
    consumed = 0
    while not plan.is_complete(consumed):
        stage = plan.stage_at(consumed)
        consumed += stage.global_batch_size
        observer.after_step(TrainingState(consumed_samples=consumed), SimpleNamespace(stage=stage))
        seen.append((stage.stage, meshes.timeouts[-1]))
    assert seen == [*[(0, STEP)] * 3, (0, START), *[(1, STEP)] * 2, (1, START)]
    assert meshes.timeouts == [STEP, START] * 2
