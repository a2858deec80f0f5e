"""Signals, kills and workers without a supervisor: no sample is lost or read twice."""

import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from commands import Command
from processes import children_of, wait_until, wait_until_all_have_ended
from rampcli.runs.manifest import complete_checkpoints
from rampcli.train import loop
from standing import let_go, stand_still_before, stand_still_until
from tiny_runs import (
    assert_every_sample_is_read_once,
    assert_killed_run_equals,
    assert_same_training,
    environment,
)

ENDLESS = [
    "model.rampup_batch_size=null",
    "trainer.val_samples=0",
    "trainer.devices=2",
    "trainer.num_nodes=1",
    "data.micro_batch_size=1",
]


def test_ctrl_c_saves_and_the_run_resumes_from_there(run):
    supervisor = run.start(*ENDLESS, "trainer.max_samples=8_000_000")
    wait_for_rows(run, 3, supervisor)
    supervisor.send_signal(signal.SIGINT)
    output, _ = supervisor.ends_with(130)
    assert run.state["status"] == "preempted"
    consumed = run.state["consumed_samples"]
    assert f"stopped after {consumed:,} samples" in output
    assert run.state["next"]["command"] in output
    assert [checkpoint.consumed_samples for checkpoint in complete_checkpoints(run.directory)] == [
        consumed
    ]
    run.complete(*ENDLESS, f"trainer.max_samples={consumed + 24}")
    assert run.rows[-1]["consumed_samples"] == consumed + 24
    assert_every_sample_is_read_once(run)


def test_a_second_supervisor_is_refused_and_a_terminated_one_saves(run):
    words = [*ENDLESS, "trainer.devices=1", "trainer.max_samples=8_000_000"]
    supervisor = run.start(*words)
    wait_for_rows(run, 1, supervisor)
    second = run.pretrain(*words)
    assert (second.returncode, "is in use by another rampcli" in second.stderr) == (2, True)
    assert f"(process {supervisor.pid} on " in second.stderr
    supervisor.terminate()
    supervisor.ends_with(75)
    assert [checkpoint.consumed_samples for checkpoint in complete_checkpoints(run.directory)] == [
        run.state["consumed_samples"]
    ]


def test_all_workers_end_when_one_is_killed_and_the_error_names_it(run):
    supervisor = run.start(*ENDLESS, "trainer.max_samples=8_000_000", "launch.max_restarts=0")
    wait_for_rows(run, 1, supervisor)
    _, victim = children_of(supervisor.pid)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    _, errors = supervisor.communicate()
    assert time.monotonic() - killed < 300  # gloo alone would wait for half an hour
    assert (supervisor.returncode, "workers crashed 1 time" in errors) == (1, True)
    assert (
        f"(rank 1 was killed by SIGKILL; log: {run.directory.logs / 'stage_0.log'})"
        in run.state["error"]["message"]
    )
    wait_until_all_have_ended(run.path)


def test_workers_end_when_their_supervisor_is_killed(run):
    supervisor = run.start(*ENDLESS, "trainer.max_samples=8_000_000")
    wait_for_rows(run, 1, supervisor)
    supervisor.kill()
    supervisor.communicate()
    wait_until_all_have_ended(run.path)


KILLED = [
    "trainer.num_nodes=2",
    "rampup.node_policy=best",
    "model.global_batch_size=4",
    "model.rampup_batch_size=[2,2,16]",
    "trainer.max_samples=56",
    "trainer.val_every_steps=5",
    "checkpoint.every_steps=4",
    "checkpoint.async=true",
    "average.ema=2000",
    "average.merge=from:steps:9",
    "phases.long.until=samples:32",
    "phases.short.data.sequence_length=8",
    "phases.short.optim.weight_decay=0.2",
    "launch.backoff_s=0",
]
"""A stage of 8 steps on one node, and 10 steps on two nodes that the end of a phase cuts."""


def test_a_run_whose_processes_were_killed_equals_an_undisturbed_run(run, tmp_path):
    """`make stress` kills at random instants."""
    undisturbed = type(run)(tmp_path / "undisturbed")
    undisturbed.complete(*KILLED)
    steps = 3, 11, len(undisturbed.rows)
    prepare = partial(stand_still_before, steps, str(tmp_path))
    supervisor = run.start(*KILLED, prepare=prepare)
    for rank, step in enumerate(steps[:2]):
        wait_for_rows(run, step - 1, supervisor)
        os.kill(children_of(supervisor.pid)[rank], signal.SIGKILL)  # next stages' come later
        let_go(step, tmp_path)
    wait_for_rows(run, steps[-1] - 1, supervisor)
    supervisor.kill()
    supervisor.wait()
    run.complete(*KILLED)
    assert [row["event"] for row in run.events].count("fault") == 2
    assert_killed_run_equals(run, undisturbed)


def wait_for_rows(run, count, supervisor) -> None:
    wait_until(lambda: len(run.rows) >= count, supervisor)


# Two steps, of 1 and 10 micro batches on each of two ranks, and validations of 10.
TWO_STEPS = [
    "trainer.num_nodes=2",
    "model.rampup_batch_size=null",
    "model.global_batch_size=null",
    "model.step_batch_size_schedule='samples: 0:2 2:20'",
    "rampup.at_boundary=continue",
    "data.micro_batch_size=1",
    "trainer.max_samples=22",
    "trainer.val_samples=20",
    "trainer.val_every_steps=1",
    "average.ema=100",
]


def stand_still_within(name: str, call: int, folder: str) -> None:
    """Lets ranks stand still within a call of a function of the loop until they must stop.

    The function calls its argument `between` after each micro batch. In the fifth of these calls,
    a rank writes a file `within_RANK` and stands still.

    Args:
        name: of the function.
        call: number of the function's call, from 1.
        folder: of the file.
    """
    function, calls = getattr(loop, name), itertools.count(1)

    def called(*arguments, between, **options):
        is_the_call, micro_batches = next(calls) == call, itertools.count(1)

        def stand_still():
            if is_the_call and next(micro_batches) == 5:
                Path(folder, f"within_{os.environ['RANK']}").touch()
                stand_still_until(lambda: between.__self__.request.asked)
            between()

        return function(*arguments, between=stand_still, **options)

    setattr(loop, name, called)


def test_a_signal_within_an_accumulation_or_a_validation_saves_and_it_is_repeated_after_resuming(
    run,
):
    # The validation after the first step is interrupted while the average takes the place of the
    # weights. The next workers repeat it, and are interrupted in the second step.
    for number, *within, validated in [
        (signal.SIGUSR1, "validate", 4, [0]),
        (signal.SIGTERM, "accumulate_gradient", 1, [0, 1]),
    ]:
        stand_still = partial(stand_still_within, *within, str(run.path))
        supervisor = run.start(*TWO_STEPS, prepare=stand_still)
        wait_until(lambda: len(list(run.path.glob("within_*"))) == 2, supervisor)
        supervisor.send_signal(number)
        output, _ = supervisor.ends_with(75)
        assert run.state["consumed_samples"] == 2
        assert "stopped after 2 samples" in output
        assert list(run.validations()) == validated
        for within_rank in run.path.glob("within_*"):
            within_rank.unlink()
    run.complete(*TWO_STEPS)
    assert_every_sample_is_read_once(run)
    undisturbed = run.beside("undisturbed")
    undisturbed.workers(2, "rampup.node_policy=fixed", *TWO_STEPS)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert run.validations() == undisturbed.validations()
    of_averages = [[row.get("ema_loss") for row in each.events] for each in (run, undisturbed)]
    assert [*filter(None, of_averages[0])] == [*filter(None, of_averages[1])] != []


def test_torchrun_by_hand_trains_as_well_and_runs_at_the_same_time_do_not_disturb_each_other(
    run, undisturbed, tmp_path
):
    words = ["rampup.at_boundary=continue", "rampup.node_policy=fixed", "data.micro_batch_size=1"]
    twin = run.beside("twin")
    beside = twin.start("trainer.num_nodes=2", *words)
    run.path.mkdir()
    run.directory.config.write_text(run.pretrain("--cfg", *words).stdout)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "rampcli.worker",
    ]
    done = subprocess.run(
        [*torchrun, run.path],
        env=environment() | {"TMPDIR": str(tmp_path)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    beside.ends_with(0)
    for each in (run, twin):
        assert {row["world_size"] for row in each.rows} == {2}
        assert_same_training(each, undisturbed)


def test_orphaned_workers_keep_a_supervisor_from_starting_others(run):
    words = [*ENDLESS, "trainer.devices=1", "trainer.max_samples=8_000_000"]
    run.path.mkdir()
    run.directory.config.write_text(run.pretrain("--cfg", *words).stdout)
    worker = Command([str(run.path)], environment(), program="rampcli.worker")
    wait_for_rows(run, 1, worker)
    supervisor = run.start(*words)
    wait_until((run.path / "lock").exists, supervisor)
    assert not any(row["event"] == "launch" for row in run.events)
    worker.send_signal(signal.SIGUSR1)
    assert worker.wait() == 75
    saved = len(run.rows)
    wait_for_rows(run, saved + 1, supervisor)
    supervisor.send_signal(signal.SIGUSR1)
    assert supervisor.wait() == 75
    assert [row["step"] for row in run.rows] == list(range(1, len(run.rows) + 1))
