import gc
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest

from rampcli.checkpoint.state import TrainingState
from rampcli.planning.run_plan import run_plan
from rampcli.train.observers.every_rank import GarbageCollection, StepTimeout


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self):
        self.myself = self


@pytest.mark.parametrize(
    ("micro_batches", "expected"), [(1, [5, 10]), (3, [2, 4, 6, 8, 10]), (9, [*range(1, 11)])]
)
def test_garbage_is_collected_after_the_same_steps_on_every_rank(micro_batches, expected):
    """However much garbage a rank makes."""
    plan = SimpleNamespace(accumulate_grad_batches=micro_batches)
    taken = SimpleNamespace(batch=SimpleNamespace(plan=plan))
    for amount in (1, 5000):
        observer, collected = GarbageCollection(every_micro_batches=5), []
        observer.at_start(TrainingState())
        for step in range(1, 11):
            first, *_ = [Cycle() for _ in range(amount)]
            garbage = weakref.ref(first)
            del first, _
            observer.after_step(TrainingState(step=step), taken)
            if garbage() is None:
                collected.append(step)
        observer.at_end(TrainingState(), "complete", save_s=0.0)
        gc.unfreeze()
        assert collected == expected
    assert gc.isenabled()


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
