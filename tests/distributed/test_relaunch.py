"""Workers of the next stage start before the current stage ends, and wait for their turn."""

import os
import signal
import time

import pytest

from processes import children_of, wait_until, wait_until_all_have_ended

RAMP = [
    "trainer.num_nodes=1",
    "trainer.devices=2",
    "rampup.node_policy=fixed",
    "data.micro_batch_size=1",
    "model.global_batch_size=4",
]
# The first stage is short enough for the second stage's workers to start at once, and long enough
# for the test to see them wait.
SECONDS_LONG = [
    *RAMP,
    "model.rampup_batch_size=[2,2,600]",
    "trainer.max_samples=640",
    "trainer.val_samples=0",
]
LONGER = [
    *RAMP,
    "model.rampup_batch_size=[2,2,2400]",
    "trainer.max_samples=4_800",
    "trainer.val_samples=0",
]


def wait_for_next_workers(run, supervisor) -> list[int]:
    wait_until(lambda: len(children_of(supervisor.pid)) == 4, supervisor)
    (launch,) = [row for row in run.events if row["event"] == "launch"]
    assert launch["stage"] == 0
    return children_of(supervisor.pid)[2:]


def test_a_worker_that_is_lost_while_it_waits_costs_nothing(run, assert_every_sample_is_read_once):
    supervisor = run.start(*SECONDS_LONG)
    os.kill(wait_for_next_workers(run, supervisor)[1], signal.SIGKILL)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 0, errors
    assert [
        (row["event"], row["stage"])
        for row in run.events
        if row["event"] in ("launch", "exit", "fault")
    ] == [
        ("launch", 0),
        ("exit", 0),
        ("launch", 1),
        ("exit", 1),
    ]
    assert_every_sample_is_read_once(run)
    wait_until_all_have_ended(run.path)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -9)])
def test_workers_that_wait_end_with_those_that_train(run, number, exit_code):
    supervisor = run.start(*LONGER)
    wait_for_next_workers(run, supervisor)
    supervisor.send_signal(number)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == exit_code, errors
    wait_until_all_have_ended(run.path)
    assert {row["stage"] for row in run.rows} == {0}
    assert not (run.directory.logs / "stage_1.log").read_text()


def test_with_one_stage_no_workers_wait(run):
    supervisor = run.start(*SECONDS_LONG, "--one-stage")
    most = 0
    while supervisor.poll() is None:
        most = max(most, len(children_of(supervisor.pid)))
        time.sleep(0.05)
    supervisor.communicate()
    assert (most, supervisor.returncode, run.state["status"]) == (2, 0, "stage_boundary")
