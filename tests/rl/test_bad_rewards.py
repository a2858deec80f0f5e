"""A reward function of the user that fails costs the responses it fails at, or ends the run."""

import json
import math
from functools import partial

import pytest

from rampcli.rl import rewards as reward_process
from standing import slow_clock

WORDS = ("rl.kl_weight=0", "trainer.val_samples=0")
FAILING = """
import json
import time
from pathlib import Path

def score(prompt, response, example):
    rewards = Path(__file__).with_name("rewards.jsonl")
    first = not rewards.exists()
    reward = {"1": "raise", "2": float("nan"), "3": "text"}.get(prompt[0])
    if first or reward is None:
        reward = len(set(response))
    with rewards.open("a") as file:
        file.write(json.dumps("hang" if first else reward) + "\\n")
    while first:
        rewards.with_name("hangs").touch()
        time.sleep(0.05)
    if reward == "raise":
        raise ValueError("no ones")
    return reward

def never(prompt, response, example):
    raise ValueError(f"cannot read {prompt}")
"""


@pytest.fixture
def rewards(tmp_path):
    """Returns the file of a reward function that hangs at its first call and fails at others."""
    file = tmp_path / "rewards.py"
    file.write_text(FAILING)
    return file


def end_deadlines_when_there_is(file: str) -> None:
    """Lets the deadline of a reward end when there is a file, and not before."""
    reward_process.time = slow_clock(file)


def test_responses_without_a_reward_are_counted_and_left_out_of_the_mean(run, rewards):
    command = run.start(
        *WORDS,
        f"rl.reward={rewards}:score",
        "trainer.max_steps=2",
        prepare=partial(end_deadlines_when_there_is, str(rewards.with_name("hangs"))),
    )
    _, errors = command.communicate()
    assert command.returncode == 0, errors
    given = [json.loads(line) for line in rewards.with_name("rewards.jsonl").read_text().split()]
    assert len(given) == 64
    assert {each for each in given if isinstance(each, str)} == {"hang", "raise", "text"}
    assert any(isinstance(each, float) for each in given)
    for row, of_step in zip(run.rows, (given[:32], given[32:]), strict=True):
        numbers = [each for each in of_step if not isinstance(each, str) and math.isfinite(each)]
        assert row["unscored"] == 32 - len(numbers) > 0
        assert row["reward"] == pytest.approx(sum(numbers) / len(numbers))
    (warning,) = [event["reason"] for event in run.events if event["event"] == "fault"]
    assert "responses of step 1 have no reward and are left out: " in warning


def test_a_step_without_any_reward_ends_the_run_and_the_next_one_evaluates_again(run, rewards):
    words = (*WORDS, "trainer.val_samples=4", "trainer.max_steps=1")
    ended = run.pretrain(*words, f"rl.reward={rewards}:never")
    assert ended.returncode == 1
    assert f"rl.reward={rewards}:never could not score any response of step 1: " in ended.stderr
    assert "ValueError: cannot read " in ended.stderr
    assert "8 of their responses have no reward: ValueError: cannot read " in ended.stdout
    assert run.rows == []
    assert [results["unscored"] for results in run.evaluations()] == [8]
    done = run.pretrain(*words)
    assert [results["unscored"] for results in run.evaluations()] == [0, 0]
    assert "no reward" not in done.stdout


@pytest.mark.parametrize(
    "where",
    [
        (),
        ("trainer.devices=2", "rl.rollout_ranks=1"),
        ("trainer.devices=2", "rl.rollout_ranks=1", "trainer.val_samples=4"),
    ],
    ids=["in turn", "on a rank that generates", "in an evaluation"],
)
def test_the_run_ends_with_the_reason_if_that_is_asked_for(where, run, rewards):
    ended = run.pretrain(
        *WORDS, *where, f"rl.reward={rewards}:never", "rl.on_bad_reward=stop", "launch.backoff_s=0"
    )
    assert ended.returncode == 1
    assert f"rl.reward={rewards}:never cannot score a response to '" in ended.stderr
    assert "ValueError: cannot read " in ended.stderr
    assert run.rows == []
    assert [event["event"] for event in run.events].count("launch") == 1


def test_a_file_of_settings_cannot_name_a_function_to_run(run, rewards, tmp_path):
    option = tmp_path / "conf" / "rl" / "theirs.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(f"generations_per_prompt: 4\nreward: {rewards}:never\n")
    refused = run.pretrain("rl=theirs", f"--config-dir={tmp_path / 'conf'}")
    assert refused.returncode == 2
    assert "only the command line or Python may do" in refused.stderr
    assert f"try:    rl.reward={rewards}:never on the command line" in refused.stderr
    assert not run.path.exists()
