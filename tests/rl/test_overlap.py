"""Rollout that overlaps with training changes nothing but the time that it takes."""

import pytest

from policy_runs import assert_same_bits

ROLLOUT = "rl.rollout_ranks={}"
RANKS = {
    "one trains and one generates": (1, 1, ()),
    "two train and one generates": (2, 1, ()),
    "one trains and two generate": (1, 2, ()),
    "two train the same layers and two generate": (2, 2, ("parallel.tensor_parallel_size=2",)),
    "one trains twice on each rollout": (1, 1, ("rl.updates_per_rollout=2",)),
    "two train twice on each rollout": (2, 1, ("rl.updates_per_rollout=2",)),
    "parts of groups are trained on": (1, 1, ("rl.micro_batch_size=2", "rl.split_groups=true")),
}


@pytest.mark.parametrize("case", RANKS)
def test_ranks_that_only_generate_change_no_bit_of_the_results(case, run, trained):
    trainers, generators, words = RANKS[case]
    run.workers(trainers + generators, ROLLOUT.format(generators), *words)
    assert set(run.column("world_size")) == {trainers}
    assert_same_bits(run, trained(trainers, *words))


def test_rows_have_the_times_of_both_sides(trained):
    for row in trained(2, ROLLOUT.format(1)).rows:
        longer = max(row["rollout_s"], row["training_s"])
        shorter = min(row["rollout_s"], row["training_s"])
        # Four micro batches.
        assert row["predicted_s"] == pytest.approx(longer + shorter / 4, abs=2e-6)
        assert row["step_time_s"] == pytest.approx(row["training_s"] + row["data_time_s"], abs=2e-6)
