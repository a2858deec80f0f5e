from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli import llm
from rampcli.checkpoint.state import TrainingState
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import read_events
from rampcli.train.observers.step_warnings import MAX_SHARE, WATCHED_STEPS, FlatRewards, SlowData
from taken_steps import step_of

LITTLE = st.floats(0, 0.99 * MAX_SHARE)
MUCH = st.floats(1.01 * MAX_SHARE, 1)
SECONDS = st.floats(1e-3, 1e3)
RUN = RunDirectory(Path("run"))
FIRST = {"step_time_s": 1e6, "data_time_s": 1e6}


def reports(shares, step_time_s=1.0):
    """Returns the report after each step that follows a first one."""
    waits = SlowData(RUN)
    waits.add(**FIRST)
    return [waits.add(step_time_s=step_time_s, data_time_s=share * step_time_s) for share in shares]


def test_limits_match_the_documentation():
    assert (WATCHED_STEPS, MAX_SHARE) == (50, 0.05)


@given(shares=st.lists(LITTLE, max_size=120), step_time_s=SECONDS)
def test_short_waits_are_not_reported(shares, step_time_s):
    assert reports(shares, step_time_s) == [None] * len(shares)


@given(share=MUCH, step_time_s=SECONDS)
def test_long_waits_are_reported_once_after_fifty_steps(share, step_time_s):
    found = reports([share] * 200, step_time_s)
    assert found[:49] == [None] * 49
    assert found[49] == pytest.approx(share)
    assert found[50:] == [None] * 150


@given(little=LITTLE, much=MUCH)
def test_waits_are_reported_as_soon_as_the_last_fifty_steps_exceed_the_limit(little, much):
    found = reports([little] * 70 + [much] * 50)
    first = next(step for step, share in enumerate(found) if share is not None)
    waited = [(little * (119 - step) + much * (step - 69)) / 50 for step in range(70, 120)]
    assert waited[first - 70] >= MAX_SHARE * (1 - 1e-9)
    assert all(share <= MAX_SHARE * (1 + 1e-9) for share in waited[: first - 70])
    assert sum(share is not None for share in found) == 1


@given(shares=st.lists(MUCH, min_size=49, max_size=49))
def test_forty_nine_steps_are_too_few_to_report(shares):
    assert reports(shares) == [None] * 49


def test_the_first_step_does_not_count():
    assert reports([0.0] * 50) == [None] * 50


def test_steps_count_by_their_time():
    waits = SlowData(RUN)
    waits.add(**FIRST)
    steps = [{"step_time_s": 100.0, "data_time_s": 0.0}] + [
        {"step_time_s": 1.0, "data_time_s": 0.5}
    ] * 48
    assert [waits.add(**step) for step in steps] == [None] * 49
    assert waits.add(**steps[-1]) == pytest.approx(24.5 / 149)


FLAT, DIFFERENT = {"flat_groups": 1.0, "reward": 0.0}, {"flat_groups": 0.5, "reward": 0.0}


@pytest.mark.parametrize(
    ("steps", "told_at"),
    [
        ([FLAT] * 10, [3]),
        ([FLAT, FLAT, DIFFERENT] * 3, []),
        ([FLAT, DIFFERENT, FLAT, FLAT, FLAT, FLAT], [5]),
        ([{}] * 5, []),
        ([{"flat_groups": 1.0, "reward": None}] * 3, [3]),
    ],
)
def test_three_steps_in_a_row_whose_rewards_teach_nothing_are_told_once(steps, told_at, tmp_path):
    run, state = RunDirectory(tmp_path), TrainingState()
    run.mark()
    taken = step_of(resolve(llm.llama3_tiny.pretrain_recipe()), 0, 1.0)
    observer = FlatRewards(run)
    for columns in steps:
        state.advance(4)
        observer.after_step(state, replace(taken, columns=columns))
    if not told_at:
        assert not run.events.exists()
        return
    events = read_events(run.events)
    (warning,) = events.warnings
    assert "all responses to a prompt got the same reward" in warning
    assert ("no response got a reward" in warning) == (steps[0]["reward"] is None)
    assert [events.newest["flat_rewards"]["step"]] == told_at
