from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import fleet_of, plan
from rampcli.runs.time_left import FIRST_STEPS, Speed, settled_rows, time_left

RAMP = plan([2, 2, 48], 8, fleet=fleet_of(4, 1), max_samples=82)


def row(step: int, **facts) -> dict:
    return {"step": step, "stage": 0, "world_size": 1, "samples_per_s": 4.0} | facts


def speed(**facts) -> Speed:
    usual = {"samples_per_s": 4.0, "world_size": 1, "has_own_devices": False, "boundary_s": 10.0}
    return Speed(**usual | facts)


def test_the_first_steps_of_a_start_of_a_stage_and_of_other_processes_do_not_count():
    rows = [row(1, world_size=2), *(row(step) for step in range(2, 9))]
    assert [each["step"] for each in settled_rows(rows, first_step=3)] == [6, 7, 8]
    assert [each["step"] for each in settled_rows(rows, first_step=0)] == [3, 4, 5, 6, 7, 8]
    assert settled_rows(rows[:4], first_step=5 - FIRST_STEPS) == []


@given(consumed=st.integers(0, 81), boundary_s=st.floats(0, 100), grows=st.booleans())
def test_the_time_left_is_that_of_the_samples_left_and_of_the_boundaries_before_the_end(
    consumed, boundary_s, grows
):
    ahead = [stage for stage in RAMP.stages if stage.end_sample > consumed]
    stage_s, run_s = time_left(
        ahead,
        consumed_samples=consumed,
        speed=speed(boundary_s=boundary_s, has_own_devices=grows),
        restarts_always=True,
    )
    factors = [stage.world_size if grows else 1 for stage in ahead]
    samples = [stage.end_sample - max(consumed, stage.first_sample) for stage in ahead]
    expected = [left / (4.0 * factor) for left, factor in zip(samples, factors, strict=True)]
    assert stage_s == pytest.approx(expected[0])
    assert run_s == pytest.approx(sum(expected) + boundary_s * (len(ahead) - 1))


def test_without_restarts_only_boundaries_at_which_the_processes_change_take_time():
    changes = sum(a.world_size != b.world_size for a, b in pairwise(RAMP.stages))
    times = [
        time_left(RAMP.stages, consumed_samples=0, speed=speed(boundary_s=cost), restarts_always=no)
        for cost, no in ((0.0, False), (10.0, False), (10.0, True))
    ]
    assert times[1][1] - times[0][1] == pytest.approx(10.0 * changes)
    assert times[2][1] - times[0][1] == pytest.approx(10.0 * (len(RAMP.stages) - 1))


def test_a_run_without_an_end_has_no_time_left_but_its_stages_may_have():
    endless = plan([2, 2, 48], 8, fleet=fleet_of(4, 1))
    stage_s, run_s = time_left(
        endless.stages, consumed_samples=0, speed=speed(), restarts_always=True
    )
    assert (stage_s, run_s) == (endless.stages[0].samples / 4.0, None)
