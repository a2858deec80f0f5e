"""Elastic runs: nodes that are lost and come back change how many ranks train, and nothing else."""

import os
import signal
from functools import partial
from itertools import groupby

import pytest

from processes import children_of, wait_until, wait_until_all_have_ended
from rampcli.launch import elastic
from standing import let_go, slow_clock, stand_still_before
from tiny_runs import Run, assert_every_sample_is_read_once

ENDLESS = [
    "model.rampup_batch_size=null",
    "trainer.max_samples=8_000_000",
    "data.micro_batch_size=1",
    "schedule.decay_style=constant",
    "launch.max_restarts=20",
]
ELASTIC = ["launch.elastic=true", *ENDLESS]
FAST = ["trainer.val_samples=0"]


def return_when_told(file: str) -> None:
    """Lets lost nodes return once there is a file, and not before."""
    elastic.time = slow_clock(file)


@pytest.fixture
def start(run, tmp_path):
    """Starts a run whose lost nodes return once there is a file `returns`."""
    prepare = partial(return_when_told, str(tmp_path / "returns"))
    return partial(run.start, prepare=prepare)


def test_a_node_that_is_lost_and_returns_changes_only_the_world_size(run, start, tmp_path):
    words = ["trainer.num_nodes=3", "model.global_batch_size=6", "checkpoint.every_steps=2"]
    supervisor = start(*ELASTIC, *FAST, *words, "launch.backoff_s=20")
    wait_until(lambda: len(run.rows) >= 3, supervisor)
    os.kill(children_of(supervisor.pid)[1], signal.SIGKILL)
    wait_until(lambda: world_sizes(run) == [3, 2], supervisor)
    assert fault(run).startswith(
        "lost node 1 (killed by SIGKILL); the remaining 2 nodes continue; restarting it in 20 s:"
        " restart 1 of at most 20"
    )
    (tmp_path / "returns").touch()
    wait_until(lambda: world_sizes(run) == [3, 2, 3], supervisor)
    supervisor.terminate()
    output, _ = supervisor.ends_with(75)
    consumed = run.state["consumed_samples"]
    assert (run.state["status"], f"stopped after {consumed:,} samples" in output) == (
        "preempted",
        True,
    )
    assert {(row["world_size"], row["accumulate_grad_batches"]) for row in run.rows} == {
        (3, 2),
        (2, 3),
    }
    assert len(run.events_of("fault")) == 1
    assert_every_sample_is_read_once(run)
    alone = Run(tmp_path / "alone")
    alone.workers(
        1, *ENDLESS, *FAST, "model.global_batch_size=6", f"trainer.max_samples={consumed}"
    )
    assert [row["order_hash"] for row in run.rows] == [row["order_hash"] for row in alone.rows]
    assert [row["loss"] for row in run.rows] == pytest.approx(
        [row["loss"] for row in alone.rows], abs=1e-5
    )
    wait_until_all_have_ended(run.path)


def test_ranks_that_do_not_divide_the_batch_wait_with_a_warning(run, start):
    supervisor = start(*ELASTIC, *FAST, "trainer.num_nodes=4", "model.global_batch_size=4")
    wait_until(lambda: len(run.rows) >= 1, supervisor)
    os.kill(children_of(supervisor.pid)[3], signal.SIGKILL)
    wait_until(lambda: world_sizes(run)[-1:] == [2], supervisor)
    supervisor.send_signal(signal.SIGUSR1)
    supervisor.ends_with(75)
    (spare,) = run.events_of("spare_ranks")
    assert spare["reason"].startswith(
        "1 of 3 ranks waits, and 2 train: model.global_batch_size=4 does not divide into"
        " data.micro_batch_size=1 x 3 data-parallel ranks"
    )
    wait_until_all_have_ended(run.path)


def test_a_run_with_fewer_than_min_nodes_waits_and_then_completes(run, tmp_path):
    words = [
        "launch.elastic=true",
        "launch.min_nodes=2",
        "launch.backoff_s=1",
        "data.micro_batch_size=1",
        *FAST,
    ]
    # The first stage runs on one node, where no other can be waited for; the second on two.
    ramp = [
        "trainer.num_nodes=2",
        "model.global_batch_size=2",
        "model.rampup_batch_size=[1,1,4]",
        "trainer.max_samples=12",
    ]
    supervisor = run.start(
        *words,
        *ramp,
        "rampup.node_policy=nemo",
        prepare=partial(stand_still_before, [7], str(tmp_path)),
    )
    wait_until(lambda: world_sizes(run)[-1:] == [2], supervisor)
    os.kill(children_of(supervisor.pid)[0], signal.SIGKILL)
    let_go(7, tmp_path)
    supervisor.ends_with(0)
    assert (
        "lost node 0 (killed by SIGKILL); the remaining node waits (launch.min_nodes=2);"
        " restarting it in 1 s" in fault(run)
    )
    assert world_sizes(run) == [1, 2]
    assert run.state["status"] == "complete"
    assert_every_sample_is_read_once(run)


def test_nothing_is_left_of_an_elastic_run_whose_supervisor_is_killed(run):
    supervisor = run.start(*ELASTIC, *FAST, "trainer.num_nodes=2", "model.global_batch_size=2")
    wait_until(lambda: len(run.rows) >= 1, supervisor)
    supervisor.kill()
    supervisor.communicate()
    wait_until_all_have_ended(run.path)


def world_sizes(run: Run) -> list[int]:
    return [size for size, _ in groupby(row["world_size"] for row in run.rows)]


def fault(run: Run) -> str:
    return next(row["reason"] for row in run.events_of("fault"))
