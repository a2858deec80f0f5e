"""A rank that is asked to stop ends its rollout at once, and no rank takes the step."""

import os

import pytest

from policy_runs import assert_same_bits
from rampcli.launch.workers import RL_WORKER
from rampcli.settings.rewards import TRUSTED_REWARD
from ranks import run_program, run_ranks

ASKED = "RANK_THAT_IS_ASKED"
REWARD = """
import os
import signal
import time
from pathlib import Path

calls = 0

def score(prompt, response, example):
    global calls
    calls += 1
    if calls >= LAST and "RANK_THAT_IS_ASKED" in os.environ:
        with Path(__file__).with_name("asked").open("a") as asked:
            asked.write("x")
        os.kill(int(os.environ["RANK_THAT_IS_ASKED"]), signal.SIGTERM)
        time.sleep(60)
    return float(response.strip() == "".join(sorted(prompt.removesuffix("="))))
"""
WORDS = (
    "rl.micro_batch_size=null",
    "rl.kl_weight=0",
    "trainer.max_steps=2",
    "trainer.val_samples=20",
)
# The pair of the last rank, and the steps and evaluations before it. Of two ranks, the second one
# evaluates the last four prompts.
PAIRS = {
    "in the second step of one rank": (1, 2 * 20 + 32 + 1, 1, 1),
    "in the second step of two data-parallel ranks": (2, 2 * 4 + 16 + 1, 1, 1),
    "in an evaluation by two data-parallel ranks": (2, 3, 0, 0),
}


def train_until_asked(run_dir: str, reward: str, *, is_asked: bool) -> object:
    """Trains, and returns the exit code. The reward function asks the last rank to stop."""
    os.environ[TRUSTED_REWARD] = reward
    if is_asked and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        os.environ[ASKED] = str(os.getpid())
    try:
        run_program(RL_WORKER, run_dir)
    except SystemExit as end:
        return end.code
    return 0


def train_first_until_asked(run_dir: str, reward: str) -> object:
    return train_until_asked(run_dir, reward, is_asked=True)


def train_on(run_dir: str, reward: str) -> object:
    return train_until_asked(run_dir, reward, is_asked=False)


@pytest.mark.parametrize("case", PAIRS)
def test_a_rank_that_is_asked_ends_its_rollout_and_all_leave_the_step(case, run, trained, tmp_path):
    ranks, pair, steps, evaluations = PAIRS[case]
    (tmp_path / "reward.py").write_text(REWARD.replace("LAST", str(pair)))
    reward = f"{tmp_path}/reward.py:score"
    run.describe(f"trainer.devices={ranks}", f"rl.reward={reward}", *WORDS)
    arguments = (str(run.path), reward)
    codes = run_ranks(ranks, train_first_until_asked, *arguments, logs=run.directory.logs)
    assert codes == [75] * ranks
    assert (tmp_path / "asked").read_text() == "x"
    assert (run.state["status"], run.state["step"], len(run.rows)) == ("preempted", steps, steps)
    assert len(run.evaluations()) == evaluations
    codes = run_ranks(ranks, train_on, *arguments, logs=run.directory.logs)
    assert codes == [0] * ranks
    assert_same_bits(run, trained(ranks, *WORDS))
