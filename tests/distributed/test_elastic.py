"""Elastic runs: nodes that are lost and come back change how many ranks train, and nothing else."""

import os
import signal
import subprocess
from itertools import groupby

import pytest

from processes import children_of, command_of, wait_until, wait_until_all_have_ended
from rampcli import llm
from rampcli.config.compose import lay_over
from rampcli.config.resolve import resolve
from rampcli.engine.spares import Places
from runs import Run

ENDLESS = [
    "model.rampup_batch_size=null",
    "trainer.max_samples=8_000_000",
    "data.micro_batch_size=1",
    "schedule.decay_style=constant",
    "launch.max_restarts=20",
]
ELASTIC = ["launch.elastic=true", *ENDLESS]
# Validations make steps last, so that few are taken while a node is gone; the weights know nothing of them.
SLOW = ["trainer.val_samples=60", "trainer.val_every_steps=1"]
FAST = ["trainer.val_samples=0"]


def test_a_node_that_is_lost_and_comes_back_changes_nothing_but_the_world_size(run, tmp_path, assert_every_sample_is_read_once):
    words = ["trainer.num_nodes=3", "model.global_batch_size=6", "checkpoint.every_steps=2"]
    supervisor = run.start(*ELASTIC, *SLOW, *words, "launch.backoff_s=20")
    wait_until(lambda: len(run.rows) >= 3, supervisor)
    os.kill(agents_of(supervisor)[1], signal.SIGKILL)
    wait_until(lambda: world_sizes(run) == [3, 2], supervisor)
    assert fault(run).startswith(
        "lost node 1 (exit code -9); the 2 left go on without it; it is started again in 20 s: restart 1 of at most 20"
    )
    wait_until(lambda: world_sizes(run) == [3, 2, 3], supervisor)
    supervisor.terminate()
    output, errors = supervisor.communicate()
    assert supervisor.returncode == 75, errors
    consumed = run.state["consumed_samples"]
    assert (run.state["status"], f"stopped after {consumed:,} samples" in output) == ("preempted", True)
    assert {(row["world_size"], row["accumulate_grad_batches"]) for row in run.rows} == {(3, 2), (2, 3)}
    assert len([row for row in run.events if row["event"] == "fault"]) == 1
    assert_every_sample_is_read_once(run)
    alone = Run(tmp_path / "alone")
    alone.workers(1, *ENDLESS, *FAST, "model.global_batch_size=6", f"trainer.max_samples={consumed}")
    assert [row["order_hash"] for row in run.rows] == [row["order_hash"] for row in alone.rows]
    assert [row["loss"] for row in run.rows] == pytest.approx([row["loss"] for row in alone.rows], abs=1e-5)
    wait_until_all_have_ended(run.path)


def test_ranks_that_the_batch_does_not_divide_into_wait_and_that_is_said(run):
    supervisor = run.start(*ELASTIC, *FAST, "trainer.num_nodes=4", "model.global_batch_size=4", "launch.backoff_s=60")
    wait_until(lambda: len(run.rows) >= 1, supervisor)
    os.kill(agents_of(supervisor)[3], signal.SIGKILL)
    wait_until(lambda: world_sizes(run)[-1:] == [2], supervisor)
    supervisor.send_signal(signal.SIGUSR1)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 75, errors
    (spare,) = [row for row in run.events if row["event"] == "spare_ranks"]
    assert spare["reason"].startswith(
        "1 of 3 ranks waits, and 2 train: model.global_batch_size=4 does not divide into data.micro_batch_size=1 x 3 data-parallel ranks"
    )
    wait_until_all_have_ended(run.path)


def test_with_fewer_nodes_than_it_wants_a_run_waits_and_then_goes_on_to_its_end(run, assert_every_sample_is_read_once):
    words = ["launch.elastic=true", "launch.min_nodes=2", "launch.backoff_s=1", "data.micro_batch_size=1", *FAST]
    # The first stage runs on one node, where no other can be waited for; the second on two.
    ramp = ["trainer.num_nodes=2", "model.global_batch_size=2", "model.rampup_batch_size=[1,1,20]", "trainer.max_samples=60"]
    supervisor = run.start(*words, *ramp, "rampup.node_policy=nemo")
    wait_until(lambda: world_sizes(run)[-1:] == [2], supervisor)
    os.kill(agents_of(supervisor)[0], signal.SIGKILL)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 0, errors
    assert "lost node 0 (exit code -9); the 1 left wait for it, with launch.min_nodes=2; it is started again in 1 s" in fault(run)
    assert world_sizes(run) == [1, 2]
    assert run.state["status"] == "complete"
    assert_every_sample_is_read_once(run)


def test_nothing_is_left_of_an_elastic_run_whose_supervisor_is_killed(run):
    supervisor = run.start(*ELASTIC, *FAST, "trainer.num_nodes=2", "model.global_batch_size=2")
    wait_until(lambda: len(run.rows) >= 1, supervisor)
    (rendezvous,) = [pid for pid in children_of(supervisor.pid) if "rampcli.engine.rendezvous" in command_of(pid)]
    supervisor.kill()
    supervisor.communicate()
    wait_until_all_have_ended(run.path)
    wait_until(lambda: "rendezvous" not in command_of(rendezvous))


@pytest.mark.parametrize(
    ("words", "world_size", "training"),
    [
        ([], 4, 4),
        ([], 5, 4),
        (["model.global_batch_size=7", "trainer.num_nodes=7"], 6, 1),
        (["parallel.tensor_parallel_size=2"], 5, 4),
        (["parallel.tensor_parallel_size=2"], 1, 0),
        (["parallel.data_parallel_shard_size=2"], 5, 4),
        (["parallel.data_parallel_shard_size=2", "parallel.tensor_parallel_size=2", "trainer.num_nodes=4"], 3, 0),
        # The same processes train both stages: three ranks divide the batch of the second alone.
        (["model.rampup_batch_size=[4,8,40]", "rampup.at_boundary=continue", "rampup.node_policy=fixed"], 3, 2),
    ],
)
def test_the_most_ranks_that_fit_train(words, world_size, training):
    given = ["trainer.num_nodes=4", "trainer.devices=1", "data.micro_batch_size=1"]
    given += ["model.global_batch_size=12", "model.rampup_batch_size=null"]
    settings = dict(word.split("=", 1) for word in [*given, *words])
    resolved = resolve(lay_over(llm.from_factory("llama3_tiny"), [f"{key}={value}" for key, value in settings.items()]))
    places = Places.of(resolved, consumed_samples=0, world_size=world_size)
    assert (places.training, places.reason is None) == (training, training == world_size)


def agents_of(supervisor: subprocess.Popen[str]) -> list[int]:
    """In the order of their nodes, at the start of a run."""
    return [pid for pid in children_of(supervisor.pid) if "torch.distributed.run" in command_of(pid)]


def world_sizes(run: Run) -> list[int]:
    return [size for size, _ in groupby(row["world_size"] for row in run.rows)]


def fault(run: Run) -> str:
    return next(row["reason"] for row in run.events if row["event"] == "fault")
