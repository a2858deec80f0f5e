from datetime import timedelta
from types import SimpleNamespace

from rampcli.checkpoint.state import TrainingState
from rampcli.parallel.mesh import START_TIMEOUT
from rampcli.planning.run_plan import run_plan
from rampcli.train.observers.step_timeout import StepTimeout

SHORT = timedelta(seconds=5)


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
    plan, meshes = run_plan(small_llama).plan, Meshes()
    observer, seen = StepTimeout(plan, meshes, SHORT), []
    consumed = 0
    while not plan.is_complete(consumed):
        stage = plan.stage_at(consumed)
        consumed += stage.global_batch_size
        observer.after_step(TrainingState(consumed_samples=consumed), SimpleNamespace(stage=stage))
        seen.append((stage.stage, meshes.timeouts[-1]))
    assert seen == [*[(0, SHORT)] * 3, (0, START_TIMEOUT), *[(1, SHORT)] * 2, (1, START_TIMEOUT)]
    assert meshes.timeouts == [SHORT, START_TIMEOUT] * 2
