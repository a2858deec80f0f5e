"""Trackers show one continuous curve, and can neither delay nor change training."""

import json
import os
import re
import signal
from functools import partial

import pytest

from commands import Command
from processes import children_of, processes_with, send, wait_until, wait_until_all_have_ended
from tiny_runs import assert_same_training, environment
from tracked import (
    Hanging,
    Raising,
    Slow,
    hurry,
    plant,
    read_tensorboard,
    read_wandb,
    read_wandb_runs,
    read_wandb_settings,
)

FIXED = ["rampup.node_policy=fixed", "trainer.num_nodes=1"]
BOTH = "logging.trackers=[tensorboard,wandb]"


@pytest.fixture
def start(run):
    """Starts the command of the run, offline and with a function that is called first."""

    def start(*words, prepare=hurry):
        variables = {"WANDB_MODE": "offline", "WANDB_PROJECT": "mine", "WANDB_TAGS": "one,two"}
        variables |= environment()
        return Command(run.command(*FIXED, *words)[3:], variables, prepare=prepare)

    return start


@pytest.fixture
def finish(start):
    """Runs that command to its end."""

    def finish(*words, prepare=hurry):
        command = start(*words, prepare=prepare)
        output, _ = command.ends_with(0)
        return output

    return finish


def test_a_run_that_is_killed_resumed_and_caught_up_with_is_one_curve_without_doubled_steps(
    run, start, finish
):
    # The learning rate, and so the repeated steps, must not depend on the length.
    words = [BOTH, "checkpoint.every_steps=10", "schedule.decay_style=constant"]
    command = start(*words, "trainer.max_samples=8_000_000")
    wait_until(lambda: min(reached(run, "tensorboard"), reached(run, "wandb")) >= 25, command)
    kill_everything(command, run)
    consumed = run.rows[-1]["consumed_samples"]
    (run.directory.trackers / "wandb" / "settings").write_text("[default]\nentity = stranger\n")
    words.append(f"trainer.max_samples={consumed + 80}")
    finish(*words)
    # As if the last command had been killed before its trackers had the last step.
    last = run.rows[-1]
    run.directory.append_row(run.directory.metrics, last | {"step": last["step"] + 1})
    finish(*words)

    assert not run.events_of("tracker_off")
    rows, steps = run.rows, [row["step"] for row in run.rows]
    assert steps == list(range(1, steps[-1] + 1))
    folder = run.directory.trackers
    curves = read_tensorboard(folder / "tensorboard")
    assert [step for step, _ in curves["train/loss"]] == steps
    assert [value for _, value in curves["train/loss"]] == pytest.approx(
        [row["loss"] for row in rows]
    )
    for axis in ("samples", "tokens"):
        assert [at for at, _ in curves[f"train/loss vs {axis}"]] == [
            row[f"consumed_{axis}"] for row in rows
        ]
    points = read_wandb(folder / "wandb")
    logged = [point for point in points if "train/loss" in point]
    assert [(point["step"], point["train/loss"], point["samples"]) for point in logged] == [
        (row["step"], row["loss"], row["consumed_samples"]) for row in rows
    ]
    assert [point["_timestamp"] for point in logged] == pytest.approx(
        [row["time"] for row in rows], abs=60
    )
    assert [point["_step"] for point in points] == list(range(len(points)))
    runs = read_wandb_runs(folder / "wandb")
    assert len(runs) == 2  # one for each command but the one that was killed
    assert {(one.run_id, one.entity, one.project, one.display_name, *one.tags) for one in runs} == {
        (runs[0].run_id, "", "mine", "llama3_tiny", "one", "two")
    }
    assert read_wandb_settings(folder / "wandb")["model.hidden_size"] == 32
    validated = sorted(run.validations())
    assert [step for step, _ in curves["validation/loss"]] == validated
    assert [point["step"] for point in points if "validation/loss" in point] == validated


def test_trackers_that_hang_or_raise_are_switched_off_with_one_warning_each(
    run, finish, undisturbed
):
    prepare = partial(plant, tensorboard=Hanging, wandb=Raising)
    output = finish(BOTH, prepare=prepare)
    assert output.count("warning: ") == 2
    events = run.events_of("tracker_off")
    assert all(f"warning: {row['reason'][:60]}" in output for row in events)
    raising, hanging = (row["reason"] for row in events)
    assert "wandb is switched off" in raising
    assert "ValueError: no such\\nproject" in raising
    assert re.search(r"tensorboard is switched off: it had reached step [0-4] of 19 ", hanging)
    assert_same_training(run, undisturbed)
    wait_until_all_have_ended(run.path)


def test_a_slow_tracker_does_not_delay_the_end(run, finish):
    output = finish("logging.trackers=[wandb]", prepare=partial(plant, wandb=Slow))
    assert output.count("warning: ") == 1
    assert "wandb is switched off: it " in run.events[-1]["reason"]
    ended = run.events[-2]
    assert (ended["event"], run.events[-1]["event"]) == ("exit", "tracker_off")
    assert run.events[-1]["time"] - ended["time"] < 60


def test_workers_without_a_supervisor_track_themselves(run):
    run.workers(1, "logging.trackers=[tensorboard]", "rampup.at_boundary=continue", *FIXED)
    curves = read_tensorboard(run.directory.trackers / "tensorboard")
    assert [step for step, _ in curves["train/loss"]] == [row["step"] for row in run.rows]


def reached(run, name: str) -> int:
    path = run.directory.trackers / f"{name}.json"
    return json.loads(path.read_text())["reached"] if path.exists() else 0


def kill_everything(command, run) -> None:
    """Kills the command, and then what belongs to its trackers: the rest dies with it."""
    trackers = children_of(command.pid)
    cores = [core for process in trackers for core in processes_with(f"--pid {process} ")]
    assert len(cores) == 1
    send(signal.SIGSTOP, trackers)  # a tracker that sees the end of its command could still finish
    command.kill()
    command.communicate()
    os.kill(cores[0], signal.SIGKILL)
    wait_until_all_have_ended(run.path)
