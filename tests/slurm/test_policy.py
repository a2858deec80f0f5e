"""Reinforcement learning as a chain of real jobs."""

import json

import pytest

from commands import run_command
from policy_runs import PolicyRun, assert_same_policies, weights_to_start_from
from processes import wait_until
from tiny_runs import environment

# Quarters, so that sums have no rounding. After a step, it stands still as long as a file says so.
REWARDS = """
import time
from pathlib import Path

def right_places(prompt, response, example):
    here = Path(__file__).parent
    while (here / "stands").exists() and (here / "run/metrics.jsonl").exists():
        time.sleep(0.05)
    return sum(map(str.__eq__, response, example["answer"])) / 4
"""
# Six steps of one rank, then three of two.
RAMP = (
    "rl.prompts_per_step=8",
    "rl.micro_batch_size=16",
    "model.rampup_batch_size=[4,4,24]",
    "trainer.max_steps=9",
    "rl.reward_deadline_s=1000",
)
ALONE = ("trainer.num_nodes=1", "rampup.node_policy=fixed", "rampup.at_boundary=continue")


@pytest.fixture
def run(tmp_path, cluster, tmp_path_factory):  # noqa: ARG001
    """A run whose jobs are submitted to the cluster, beside the rewards that its words name."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    return PolicyRun(tmp_path / "run", weights_to_start_from(tmp_path_factory))


def test_jobs_that_lose_a_node_and_grow_train_a_policy_as_one_process_does(run, cluster, tmp_path):
    words = (*RAMP, "rl.reward=rewards.py:right_places")
    (tmp_path / "stands").touch()
    done = run.pretrain("launch=slurm", "trainer.num_nodes=2", *words)
    assert done.returncode == 0, done.stderr
    first, last = (job["job"] for job in read_jobs(run))
    wait_until(lambda: run.rows or run.state["status"] == "failed", evidence=lambda: logs(run))
    assert len(run.rows) < 6, logs(run)
    lost = cluster.job(first)["NodeList"]
    cluster.set_down(lost)
    cluster.wait_for(first, "PENDING")
    (tmp_path / "stands").unlink()
    cluster.release(first)
    cluster.wait_for(last, "COMPLETED", "CANCELLED", "FAILED")
    assert run.state["status"] == "complete", logs(run)
    assert cluster.job(first)["Restarts"] == "1"
    assert cluster.job(first)["NodeList"] != lost
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2}
    alone = run.beside("alone")
    done = alone.pretrain(*ALONE, *words)
    assert done.returncode == 0, done.stderr
    assert_same_policies(run, alone)
    status = run_command(["status", str(run.path)], environment()).stdout
    assert "\nstep 9, 48 prompts; saved after step 9\n" in status
    assert status.count("COMPLETED") == 2


def test_a_function_that_cannot_be_loaded_here_is_noted_before_its_job_is_submitted(run):
    refused = run.pretrain(
        "launch=slurm", "launch.slurm.partition=nowhere", "rl.reward=rewards.py:missing"
    )
    assert refused.returncode == 1
    assert "rewards.py:missing: it has no function missing; it has right_places" in refused.stdout
    assert "this was tried here" in refused.stdout
    assert "invalid partition" in refused.stderr


def read_jobs(run):
    return json.loads((run.path / "slurm/jobs.json").read_text())["jobs"]


def logs(run):
    return "\n".join(log.read_text()[-2000:] for log in sorted(run.directory.logs.glob("*.log")))
