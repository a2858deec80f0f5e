"""Workers of the next stage start before the current stage ends, and wait for their turn."""

import os
import signal
from functools import partial

import pytest

from processes import children_of, wait_until, wait_until_all_have_ended
from standing import let_go, stand_still_before
from tiny_runs import assert_every_sample_is_read_once

# Stages of four steps and of three. The second one's workers start after the first step: even on
# a slow machine, the rest of the stage takes less than half a minute.
RAMP = [
    "trainer.num_nodes=1",
    "trainer.devices=2",
    "rampup.node_policy=fixed",
    "data.micro_batch_size=1",
    "model.global_batch_size=4",
    "model.rampup_batch_size=[2,2,8]",
    "trainer.max_samples=20",
    "trainer.val_samples=0",
]
LAST = 4


@pytest.fixture
def start(run, tmp_path):
    """Starts a run that stands still before the last step of its first stage."""
    prepare = partial(stand_still_before, [LAST], str(tmp_path))
    return partial(run.start, *RAMP, prepare=prepare)


def wait_for_next_workers(run, supervisor) -> list[int]:
    """Waits until the next stage's workers have started, and returns them."""
    wait_until(lambda: len(children_of(supervisor.pid)) == 4, supervisor)
    (launch,) = run.events_of("launch")
    assert launch["stage"] == 0
    return children_of(supervisor.pid)[2:]


def test_losing_a_waiting_worker_costs_no_restart(run, start, tmp_path):
    supervisor = start()
    os.kill(wait_for_next_workers(run, supervisor)[1], signal.SIGKILL)
    let_go(LAST, tmp_path)
    supervisor.ends_with(0)
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
def test_waiting_workers_end_with_the_training_ones(run, start, number, exit_code):
    supervisor = start()
    wait_for_next_workers(run, supervisor)
    supervisor.send_signal(number)
    supervisor.ends_with(exit_code)
    wait_until_all_have_ended(run.path)
    assert {row["stage"] for row in run.rows} == {0}
    assert not (run.directory.logs / "stage_1.log").read_text()


def test_with_one_stage_no_workers_wait(run, start, tmp_path):
    supervisor = start("--one-stage")
    # The supervisor prints the step, and then starts the next workers unless `--one-stage` is set.
    wait_until(lambda: " · loss " in supervisor.printed(), supervisor)
    let_go(LAST, tmp_path)
    supervisor.communicate()
    assert (supervisor.returncode, run.state["status"]) == (0, "stage_boundary")
    assert [path.name for path in run.directory.logs.iterdir()] == ["stage_0.log"]
