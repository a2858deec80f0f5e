import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.overlap import overlapped_s, saved_at_best

SECONDS = st.floats(0.01, 100)


@given(rollout_s=SECONDS, training_s=SECONDS, micro_batches=st.integers(1, 50))
def test_the_prediction_is_the_end_of_two_stations_with_equal_pieces(
    rollout_s, training_s, micro_batches
):
    generated = trained = 0.0
    for _ in range(micro_batches):
        generated += rollout_s / micro_batches
        trained = max(trained, generated) + training_s / micro_batches
    predicted = overlapped_s(rollout_s, training_s, micro_batches=micro_batches)
    assert predicted == pytest.approx(trained)


def test_one_micro_batch_overlaps_nothing_and_many_hide_half_of_a_balanced_step():
    assert saved_at_best(1) == 0
    assert saved_at_best(10_000) == pytest.approx(0.5, abs=1e-3)
