import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.overlap import overlapped_s, saved_at_best
from rampcli.rl.bridge import Roles

SECONDS = st.floats(0.01, 100)
FEW = st.integers(1, 6)


def end_of_step(rollout_s, training_s, *, micro_batches, data_ranks, generators):
    """Returns when the last rank ends, if each has a clock and takes its work in turn."""
    roles = Roles(rank=0, trainers=data_ranks, generators=generators)
    generated = dict.fromkeys(range(data_ranks, data_ranks + generators), 0.0)
    trained = [0.0] * data_ranks
    for number in range(micro_batches):
        for rank in range(data_ranks):
            generator = roles.generator_of(number * data_ranks + rank)
            generated[generator] += rollout_s
            trained[rank] = max(trained[rank], generated[generator]) + training_s
    return max(trained)


@given(one_rollout_s=SECONDS, one_pass_s=SECONDS, n=st.integers(1, 20), d=FEW, g=FEW)
def test_the_prediction_is_the_end_of_ranks_that_take_rollouts_in_turn(
    one_rollout_s, one_pass_s, n, d, g
):
    sizes = {"micro_batches": n, "data_ranks": d, "generators": g}
    predicted = overlapped_s(one_rollout_s * n * d / g, one_pass_s * n, **sizes)
    assert predicted == pytest.approx(end_of_step(one_rollout_s, one_pass_s, **sizes))


@given(rollout_s=SECONDS, training_s=SECONDS, n=st.integers(1, 50), g=FEW, each=FEW)
def test_the_faster_side_adds_one_micro_batch_if_rollouts_divide_over_the_generators(
    rollout_s, training_s, n, g, each
):
    predicted = overlapped_s(
        rollout_s, training_s, micro_batches=n, data_ranks=g * each, generators=g
    )
    longer, shorter = max(rollout_s, training_s), min(rollout_s, training_s)
    assert predicted == pytest.approx(longer + shorter / n)


@pytest.mark.parametrize(
    ("generators", "one_pass_s", "end_s"), [(3, 0.1, 2.1), (4, 1.0, 5.0), (2, 1.0, 5.0)]
)
def test_more_generators_than_data_ranks_bring_several_rollouts_at_once(
    generators, one_pass_s, end_s
):
    """Four rollouts of 1 s each."""
    predicted = overlapped_s(
        4 / generators, 4 * one_pass_s, micro_batches=4, data_ranks=1, generators=generators
    )
    assert predicted == pytest.approx(end_s)


def test_one_micro_batch_overlaps_nothing_and_many_hide_half_of_a_balanced_step():
    assert saved_at_best(micro_batches=1, data_ranks=1, generators=1) == 0
    many = saved_at_best(micro_batches=10_000, data_ranks=1, generators=1)
    assert many == pytest.approx(0.5, abs=1e-3)


def test_generators_that_bring_all_rollouts_at_once_save_nothing():
    assert saved_at_best(micro_batches=4, data_ranks=1, generators=4) == 0
