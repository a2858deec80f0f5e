import gc
import weakref
from types import SimpleNamespace

import pytest

from rampcli.checkpoint.state import TrainingState
from rampcli.train.observers.garbage import GarbageCollection


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self):
        self.myself = self


@pytest.mark.parametrize(
    ("micro_batches", "expected"), [(1, [5, 10]), (3, [2, 4, 6, 8, 10]), (9, [*range(1, 11)])]
)
def test_garbage_is_collected_after_the_same_steps_on_every_rank(micro_batches, expected):
    """However much garbage a rank makes."""
    split = SimpleNamespace(accumulate_grad_batches=micro_batches)
    taken = SimpleNamespace(batch=SimpleNamespace(split=split))
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
