"""A rank of a trial, in this process: what it times, and the signs of too little memory."""

import pytest
import torch

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.tune.diagnose import MemoryPressure
from rampcli.tune.trial_files import Effort, TrialOrder
from tiny_runs import TINY

CPU = torch.device("cpu")


@pytest.fixture
def trainer(alone, tmp_path):  # noqa: ARG001
    """A trainer of a tiny model on one rank."""
    # Imported here, so that other tests do not wait for it.
    from rampcli.launch.run import write_run_files
    from rampcli.train.observers.boundary import BoundaryCosts
    from rampcli.train.stopping import StopRequest
    from rampcli.worker.assemble import build_trainer

    settings = TINY | {
        "model.rampup_batch_size": "null",
        "trainer.num_nodes": "1",
        "trainer.devices": "1",
        "trainer.val_samples": "0",
        "run_dir": str(tmp_path / "run"),
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    resolved = resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))
    run = RunDirectory(resolved.run_dir)
    write_run_files(run, resolved, [])
    costs = BoundaryCosts(run=run, started=0.0, imported=0.0)
    return build_trainer(resolved, resolved.phases[0], run, CPU, StopRequest(), costs)


def test_signs_of_too_little_memory_are_counted_in_all_steps_that_are_timed(trainer):
    from rampcli.tune.measure import gather_result, time_steps

    effort, pressure = Effort(warm_up_steps=1, most_steps=2, spread=0.1), MemoryPressure(CPU)
    order = TrialOrder(timed=(1, 3), effort=effort)
    result = gather_result(time_steps(trainer, order, pressure), pressure)
    assert {count: len(times) for count, times in result.step_s.items()} == {1: 2, 3: 2}
    assert result.signs["watched_steps"] == 4
