"""Runs in phases: each phase trains on its own mesh, and stops and resumes where it should."""

import pytest

from distributed.average import assert_same_averages, averaged, merged, newest_average
from once import make_once
from rampcli.batch.averages import AVERAGES, EMA, MERGE
from tiny_runs import Run, assert_same_training

PHASES = [
    "model.num_query_groups=2",
    "rampup.node_policy=fixed",
    "trainer.max_samples=82",
    "average.ema=150",
    "average.merge=from:steps:6",
    "phases.short.until=steps:7",
    "phases.short.data.sequence_length=8",
    "phases.main.until=samples:40",
    "phases.decay.until=800",
    "phases.decay.schedule.decay_style=linear",
    "phases.decay.optim.min_lr=0",
    "phases.long.until=null",
    "phases.long.data.sequence_length=32",
    "phases.long.model.global_batch_size=8",
    "phases.long.optim.lr=1e-3",
    "phases.long.optim.warmup_steps=2",
    "phases.long.optim.warmup_samples=null",
    "phases.long.optim.weight_decay=0.2",
]
"""The averages follow the weights over samples of 8, 16 and 32 tokens.

The ramp of the run goes on over the first three phases; the last one has a batch of its own.
"""
EACH_STEP = ("checkpoint.every_steps=1", "checkpoint.keep_last=100")
MESHES = [
    "rampup.at_boundary=continue",
    "trainer.num_nodes=2",
    "data.micro_batch_size=1",
    "phases.main.parallel.tensor_parallel_size=2",
    "phases.main.data.micro_batch_size=2",
    "phases.decay.parallel.context_parallel_size=2",
    "phases.long.parallel.pipeline_parallel_size=2",
    "phases.long.data.micro_batch_size=4",
]


def assert_averages_agree(run: Run, other: Run) -> None:
    for kind in AVERAGES:
        expected = newest_average(other.directory, kind)
        assert_same_averages(run.directory, kind, expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    """Returns the run on one process."""

    def train(path):
        done = Run(path).pretrain(*PHASES, *EACH_STEP, "trainer.num_nodes=1")
        assert done.returncode == 0, done.stderr

    return Run(make_once(tmp_path_factory, "phases", train))


def test_averages_count_tokens_over_phases_whose_samples_differ_in_length(alone):
    lengths = {row["step"]: row["consumed_tokens"] for row in alone.rows}
    expected = {
        EMA: averaged(alone.directory, since_step=0, half_life_tokens=150),
        MERGE: merged(alone.directory, first_token=lengths[6]),
    }
    for kind, values in expected.items():
        assert_same_averages(alone.directory, kind, values, rtol=1e-5, atol=1e-7)


def test_phases_train_on_meshes_of_their_own_as_on_one_process(run, alone):
    run.complete(*PHASES, *MESHES)
    assert {row["world_size"] for row in run.rows} == {2}
    assert [row["event"] for row in run.events].count("launch") == 4  # one per mesh
    assert_same_training(run, alone)
    assert_averages_agree(run, alone)


def test_a_run_in_phases_that_stops_after_each_stage_resumes_on_other_processes(run, alone):
    stages = alone.rows[-1]["stage"] + 1
    for stage in range(stages):
        processes = 1 + stage % 2
        words = [f"trainer.num_nodes={processes}", f"data.micro_batch_size={3 - processes}"]
        run.complete("--one-stage", *PHASES, *words)
        assert run.rows[-1]["stage"] == stage
        assert run.rows[-1]["world_size"] == processes
    assert run.state["status"] == "complete"
    assert_same_training(run, alone)
    assert_averages_agree(run, alone)
