"""Ranks wait for each other as long as rollouts take."""

import os
from datetime import timedelta

import torch.distributed.distributed_c10d as c10d

from rampcli.launch.workers import RL_WORKER
from rampcli.settings.rewards import TRUSTED_REWARD
from ranks import run_program, run_ranks

SLOW_REWARD = """
import time

def score(prompt, response, example):
    time.sleep(1.6)
    return len(set(response))
"""
TIMEOUT_S = 5.0
"""Shorter than the four rewards of the step."""


def train_impatiently(run_dir: str, reward: str) -> None:
    """Trains with a short timeout of torch for collectives."""
    os.environ[TRUSTED_REWARD] = reward
    usual, c10d.default_pg_timeout = c10d.default_pg_timeout, timedelta(seconds=TIMEOUT_S)
    try:
        run_program(RL_WORKER, run_dir)
    finally:
        c10d.default_pg_timeout = usual


def test_a_rank_waits_longer_than_torch_does_for_the_rollout_of_another_one(run, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_REWARD)
    reward = f"{tmp_path}/slow.py:score"
    run.describe(
        "trainer.devices=2",
        "parallel.tensor_parallel_size=2",
        "rl.prompts_per_step=2",
        "rl.generations_per_prompt=2",
        "rl.micro_batch_size=null",
        "rl.kl_weight=0",
        f"rl.reward={reward}",
        "trainer.max_steps=1",
        "trainer.val_samples=0",
    )
    run_ranks(2, train_impatiently, str(run.path), reward, logs=run.directory.logs)
    assert run.state["status"] == "complete"
    assert run.rows[0]["rollout_s"] > TIMEOUT_S
