"""Rollout that overlaps with training changes nothing but the time that it takes."""

import pytest

from policy_runs import assert_same_bits
from rampcli.batch.plan import BatchPlan
from rampcli.rl.metrics import RolloutSums, times_of

ROLLOUT = "rl.rollout_ranks={}"
SHORT = ("trainer.max_steps=1", "trainer.val_samples=0", "rl.kl_weight=0")
RANKS = {
    "one trains and one generates": (1, 1, ()),
    "two train and one generates": (2, 1, ()),
    "two train the same layers and two generate": (
        2,
        2,
        ("parallel.tensor_parallel_size=2", *SHORT),
    ),
    "two train twice on each rollout": (2, 1, ("rl.updates_per_rollout=2",)),
}


@pytest.mark.parametrize("case", RANKS)
def test_ranks_that_only_generate_change_no_bit_of_the_results(case, run, trained):
    trainers, generators, words = RANKS[case]
    run.workers(trainers + generators, ROLLOUT.format(generators), *words)
    assert set(run.column("world_size")) == {trainers}
    assert_same_bits(run, trained(trainers, *words))


def test_rows_have_the_times_of_both_sides(trained):
    for row in trained(2, ROLLOUT.format(1)).rows:
        assert row["step_time_s"] == pytest.approx(row["training_s"] + row["data_time_s"], abs=2e-6)


@pytest.mark.parametrize("generators", [1, 2, 4])
def test_the_times_of_a_step_predict_the_step(generators):
    """Four rollouts of 1 s, and four passes of 1 s: only the first rollout is waited for."""
    zeros = RolloutSums(*[0.0] * len(RolloutSums._fields))
    times = times_of(
        zeros._replace(rollout_s=4.0),
        BatchPlan.divide(4, micro_batch_size=1, data_parallel_size=1),
        waited_s=1.0,
        step_time_s=5.0,
        generators=generators,
    )
    assert times["predicted_s"] == 5.0
