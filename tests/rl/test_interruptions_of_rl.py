"""Signals, kills and restarts: no prompt is lost or answered twice, and no rank stays behind."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from commands import Command
from policy_runs import assert_same_bits
from processes import children_of, wait_until, wait_until_all_have_ended
from rampcli.launch.workers import RL_WORKER, Workers, reserve_port
from standing import let_go, stand_still_before
from tiny_runs import environment

OVERLAP = ("trainer.devices=2", "rl.rollout_ranks=1")
LONG = ("rl.kl_weight=0", "trainer.max_steps=24", "trainer.val_every_steps=null")
SAVING = ("checkpoint.every_steps=2", "launch.backoff_s=0")
TRAINS, GENERATES = 0, 1

STANDING_REWARD = """
import time
from pathlib import Path

def score(prompt, response, example):
    scored, asked = (Path(__file__).with_name(name) for name in ("scored", "asked"))
    with scored.open("a") as file:
        file.write("x")
    while scored.stat().st_size > 8 and not asked.exists():
        time.sleep(0.05)
    return len(set(response))
"""


@pytest.fixture(scope="module")
def undisturbed(trained):
    """Returns a run that was never stopped."""
    return trained(1, *LONG)


@pytest.fixture
def start(run, tmp_path):
    """Starts a run that stands still before steps."""

    def start(*words, before):
        prepare = partial(stand_still_before, before, str(tmp_path))
        return run.start(*words, prepare=prepare)

    return start


def wait_for_rows(run, count, process) -> None:
    wait_until(lambda: len(run.rows) >= count, process)


def logged(run) -> str:
    return "".join(log.read_text() for log in run.directory.logs.iterdir())


def exit_codes(run) -> list[int]:
    return [event["exit_code"] for event in run.events if event["event"] == "exit"]


def test_a_run_restarts_after_a_rank_was_killed_whether_it_trained_or_generated(
    run, start, undisturbed, tmp_path
):
    steps = (6, 11)
    supervisor = start(*OVERLAP, *LONG, *SAVING, before=steps)
    for kills, (step, victim) in enumerate(zip(steps, (GENERATES, TRAINS), strict=True), start=1):
        wait_for_rows(run, step - 1, supervisor)
        os.kill(children_of(supervisor.pid)[victim], signal.SIGKILL)
        wait_until(lambda: len(exit_codes(run)) == kills, supervisor)  # noqa: B023
        let_go(step, tmp_path)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 0, errors
    reasons = [event["reason"] for event in run.events if event["event"] == "fault"]
    assert [
        f"rank {rank} was killed by SIGKILL" in reason
        for rank, reason in zip((GENERATES, TRAINS), reasons, strict=True)
    ] == [True, True]
    assert_same_bits(run, undisturbed)
    wait_until_all_have_ended(run.path)


def test_signals_save_and_the_same_command_resumes(run, start, undisturbed):
    for number, exit_code, step in ((signal.SIGINT, 130, 4), (signal.SIGTERM, 75, 7)):
        supervisor = start(*OVERLAP, *LONG, before=[step])
        wait_for_rows(run, step - 1, supervisor)
        supervisor.send_signal(number)
        _, errors = supervisor.communicate()
        assert supervisor.returncode == exit_code, errors
        assert run.state["status"] == "preempted"
        assert run.state["step"] == len(run.rows)
    done = run.pretrain(*OVERLAP, *LONG)
    assert done.returncode == 0, done.stderr
    assert_same_bits(run, undisturbed)
    assert exit_codes(run) == [75, 75, 0]
    assert "Traceback" not in logged(run)


def note_when_ranks_are_asked_to_stop(file: str) -> None:
    """Creates a file once the supervisor has asked the ranks to stop."""
    ask_to_stop = Workers.ask_to_stop

    def called(workers):
        ask_to_stop(workers)
        Path(file).touch()

    Workers.ask_to_stop = called


def test_a_signal_within_a_rollout_leaves_the_step_undone(run, tmp_path):
    (tmp_path / "standing.py").write_text(STANDING_REWARD)
    words = ("trainer.val_samples=0", f"rl.reward={tmp_path}/standing.py:score")
    supervisor = run.start(
        *OVERLAP,
        *LONG,
        *words,
        "rl.reward_deadline_s=1000",
        prepare=partial(note_when_ranks_are_asked_to_stop, str(tmp_path / "asked")),
    )
    # The second micro batch of eight pairs is scored while the first one is trained on.
    scored = tmp_path / "scored"
    wait_until(lambda: scored.exists() and len(scored.read_text()) == 9, supervisor)
    supervisor.terminate()
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 75, errors
    assert (run.state["status"], run.state["step"], run.rows) == ("preempted", 0, [])
    assert "Traceback" not in logged(run)


def test_ranks_started_by_hand_end_with_the_run_or_with_the_one_that_was_killed(
    run, trained, tmp_path
):
    prepare = partial(stand_still_before, [4], str(tmp_path))

    def start() -> list[Command]:
        with reserve_port() as reserved:
            port = reserved.getsockname()[1]
        place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        return [
            Command(
                [str(run.path)],
                environment()
                | place
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)},
                program=RL_WORKER,
                prepare=prepare,
            )
            for rank in range(2)
        ]

    run.describe(*OVERLAP, *LONG, *SAVING)
    ranks = start()
    wait_for_rows(run, 3, ranks[TRAINS])
    ranks[TRAINS].kill()
    assert [rank.wait() for rank in ranks] == [-signal.SIGKILL, 1]
    let_go(4, tmp_path)
    ranks = start()
    assert [rank.wait() for rank in ranks] == [0, 0]
    assert_same_bits(run, trained(1, *LONG))


def test_a_ramp_of_prompts_trains_stage_by_stage_on_other_ranks(run, trained):
    """The first stage has a number of prompts that the ranks of the second stage do not divide."""
    words = [
        "rl.prompts_per_step=6",
        "rl.micro_batch_size=4",
        "model.rampup_batch_size=[3,3,9]",
        "trainer.max_steps=null",
        "trainer.max_samples=27",
        "rampup.node_policy=fixed",
    ]
    alone = trained(1, "rampup.at_boundary=continue", *words)
    begun = run.pretrain("--one-stage", *words)
    assert begun.returncode == 0, begun.stderr
    assert run.state["status"] == "stage_boundary"
    assert run.state["next"]["stage"] == 1
    done = run.pretrain(*words, "trainer.devices=3", "rl.rollout_ranks=1")
    assert done.returncode == 0, done.stderr
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2}
    assert run.column("order_hash") == alone.column("order_hash")
    assert run.column("reward") == alone.column("reward")
    assert run.column("loss") == pytest.approx(alone.column("loss"), abs=2e-5)
