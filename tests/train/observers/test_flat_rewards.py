from dataclasses import replace

import pytest

from rampcli import llm
from rampcli.checkpoint.state import TrainingState
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import read_events
from rampcli.train.observers.flat_rewards import FlatRewards
from taken_steps import step_of

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
