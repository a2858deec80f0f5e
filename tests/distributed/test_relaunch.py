"""Workers of the next stage start before the current stage ends, and wait for their turn."""

import os
import signal

import pytest

from processes import LOOK_EVERY_S, children_of, send, wait_until, wait_until_all_have_ended

RAMP = [
    "trainer.num_nodes=1",
    "trainer.devices=2",
    "rampup.node_policy=fixed",
    "data.micro_batch_size=1",
    "model.global_batch_size=4",
    "trainer.val_samples=0",
]
# Two seconds or less. Tests stop the workers of the first stage to look at those that wait.
SHORT = [*RAMP, "model.rampup_batch_size=[2,2,120]", "trainer.max_samples=132"]
# The second stage's workers start at once, but the first stage would take 15 seconds.
LONGER = [*RAMP, "model.rampup_batch_size=[2,2,1200]", "trainer.max_samples=2_400"]


def stop_workers_after_a_step(run, supervisor) -> list[int]:
    wait_until(lambda: run.rows, supervisor)
    workers = children_of(supervisor.pid)[:2]
    send(signal.SIGSTOP, workers)
    return workers


def take_a_step(run, supervisor, stopped) -> None:
    steps = len(run.rows)
    send(signal.SIGCONT, stopped)
    wait_until(lambda: len(run.rows) > steps, supervisor)
    send(signal.SIGSTOP, stopped)


def wait_for_next_workers(run, supervisor, stopped=()) -> list[int]:
    """Waits for the next stage's workers; stopped ones of the first stage take a step at times.

    The supervisor starts them when little of the stage is left at the speed of the last step.
    """

    def have_started() -> bool:
        if len(children_of(supervisor.pid)) == 4:
            return True
        if stopped:
            take_a_step(run, supervisor, stopped)
        return False

    wait_until(have_started, supervisor, every_s=2 if stopped else LOOK_EVERY_S)
    (launch,) = [row for row in run.events if row["event"] == "launch"]
    assert launch["stage"] == 0
    return children_of(supervisor.pid)[2:]


def test_losing_a_waiting_worker_costs_no_restart(run, assert_every_sample_is_read_once):
    supervisor = run.start(*SHORT)
    stopped = stop_workers_after_a_step(run, supervisor)
    os.kill(wait_for_next_workers(run, supervisor, stopped)[1], signal.SIGKILL)
    send(signal.SIGCONT, stopped)
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
def test_waiting_workers_end_with_the_training_ones(run, number, exit_code):
    supervisor = run.start(*LONGER)
    wait_for_next_workers(run, supervisor)
    supervisor.send_signal(number)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == exit_code, errors
    wait_until_all_have_ended(run.path)
    assert {row["stage"] for row in run.rows} == {0}
    assert not (run.directory.logs / "stage_1.log").read_text()


def test_with_one_stage_no_workers_wait(run):
    supervisor = run.start(*SHORT, "--one-stage")
    stopped = stop_workers_after_a_step(run, supervisor)
    # The supervisor prints the step, and then starts the next workers unless `--one-stage` is set.
    wait_until(lambda: " · loss " in supervisor.printed(), supervisor)
    send(signal.SIGCONT, stopped)
    supervisor.communicate()
    assert (supervisor.returncode, run.state["status"]) == (0, "stage_boundary")
    assert [path.name for path in run.directory.logs.iterdir()] == ["stage_0.log"]
