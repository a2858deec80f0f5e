from hypothesis import given
from hypothesis import strategies as st

from rampcli.launch.restarts import LONGEST_BACKOFF_S, Restarts


@given(max_restarts=st.integers(0, 20), backoff_s=st.floats(0, 100))
def test_crashes_are_followed_by_max_restarts_restarts_with_doubling_waits(max_restarts, backoff_s):
    restarts = Restarts(max_restarts=max_restarts, backoff_s=backoff_s)
    waits = [restarts.after_crash(step) for step in range(max_restarts)]
    assert waits == [
        min(LONGEST_BACKOFF_S, backoff_s * 2**number) for number in range(max_restarts)
    ]
    why = restarts.after_crash(max_restarts)
    assert f"launch.max_restarts={max_restarts}" in why


def test_two_consecutive_crashes_at_the_same_step_end_the_restarts():
    restarts = Restarts(max_restarts=10, backoff_s=1.0)
    assert [restarts.after_crash(step) for step in (4, 5, 4)] == [1.0, 2.0, 4.0]
    assert restarts.after_crash(4) == "workers crashed at step 5 on two consecutive starts"


def test_a_crash_before_training_differs_from_one_at_a_step():
    restarts = Restarts(max_restarts=10, backoff_s=1.0)
    assert [restarts.after_crash(step) for step in (None, 4, None, 4)] == [1.0, 2.0, 4.0, 8.0]


def test_two_consecutive_crashes_before_training_end_the_restarts():
    restarts = Restarts(max_restarts=10, backoff_s=1.0)
    assert [restarts.after_crash(step) for step in (None, 4, None)] == [1.0, 2.0, 4.0]
    why = restarts.after_crash(None)
    assert why == "workers crashed before the first step on two consecutive starts"


def test_a_lost_node_counts_as_a_crash_at_no_step():
    restarts = Restarts(max_restarts=3, backoff_s=1.0)
    assert [restarts.after_crash(4), restarts.after_lost_node(), restarts.after_crash(4)] == [
        1.0,
        2.0,
        4.0,
    ]
    assert restarts.after_lost_node() == "workers crashed 4 times, with launch.max_restarts=3"
