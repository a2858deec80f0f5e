"""Commands on GPUs: a run that grows, is killed, stops and resumes, and what is made from it."""

import json
import os
import signal
from itertools import groupby

import pytest

import commands as corpus
from commands import Command, run_command
from gpu_rehearsal.gpu_runs import devices_of, gpu_environment
from processes import children_of, wait_until, wait_until_all_have_ended
from tiny_runs import Run, assert_every_sample_is_read_once

PROMPTS = ["def f(", "class "]
# Batches of 2 samples on one GPU, then of 4 on two. The run ends when it is told to.
WORDS = [
    "data=text",
    f"data.path={corpus.__file__}",
    "data.sequence_length=32",
    "data.micro_batch_size=2",
    "model.vocab_size=256",
    "model.rampup_batch_size=[2,2,8]",
    "model.global_batch_size=4",
    "schedule.decay_style=constant",
    "trainer.val_samples=2",
    "trainer.val_every_steps=2",
    "checkpoint.every_steps=2",
    "checkpoint.keep_last=100",
    "checkpoint.async=true",
    f"generate.prompts={json.dumps(PROMPTS)}",
    "generate.every_steps=3",
    "generate.max_tokens=8",
]
ALONE = [
    "trainer.accelerator=cpu",
    "trainer.num_nodes=1",
    "rampup.node_policy=fixed",
    "rampup.at_boundary=continue",
]
ENDLESS = "trainer.max_samples=8_000_000"


def start(run: Run, *words: str) -> Command:
    return Command(run.command(*words, "trainer.accelerator=gpu")[3:], gpu_environment())


def world_sizes(run: Run) -> list[int]:
    return [size for size, _ in groupby(row["world_size"] for row in run.rows)]


def texts(run: Run) -> dict[int, list[dict]]:
    return {row["step"]: row["texts"] for row in run.events if row["event"] == "samples"}


def assert_same_as_alone(run: Run, alone: Run, *, within: float) -> None:
    """Checks that a run on GPUs has the losses of one process on the CPU."""
    assert_every_sample_is_read_once(run)
    assert devices_of(run) == {"cuda"}
    assert [row["order_hash"] for row in run.rows] == [row["order_hash"] for row in alone.rows]
    losses, expected = ([row["loss"] for row in each.rows] for each in (run, alone))
    assert losses == pytest.approx(expected, abs=within)
    assert run.validations() == pytest.approx(alone.validations(), abs=within)


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """A run on GPUs after its life, and the same run on one process of the CPU."""
    folder = tmp_path_factory.mktemp("life")
    run, alone = Run(folder / "run"), Run(folder / "alone")
    command = start(run, *WORDS, ENDLESS, "trainer.num_nodes=2")
    wait_until(lambda: [row["world_size"] for row in run.rows[-4:]] == [2] * 4, command)
    killed_at = len(run.rows)
    os.kill(children_of(command.pid)[1], signal.SIGKILL)
    wait_until(lambda: any(row["event"] == "fault" for row in run.events), command)
    wait_until(lambda: len(run.rows) > killed_at + 2, command)
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate()
    assert command.returncode == 75, errors
    stopped_at = run.state["consumed_samples"]
    # Four more steps on one GPU, of which two are profiled.
    last = [f"trainer.max_samples={stopped_at + 16}"]
    step = run.state["step"]
    profiled = f"profile.steps=[{step + 2},{step + 3}]"
    command = start(run, *WORDS, *last, profiled, "trainer.num_nodes=1")
    _, errors = command.communicate()
    assert command.returncode == 0, errors
    alone.workers(1, *WORDS, *last, *ALONE)
    return run, alone


def test_a_run_that_grows_is_killed_stops_and_resumes_on_fewer_gpus_trains_as_the_cpu_does(life):
    run, alone = life
    assert world_sizes(run) == [1, 2, 1]
    (fault,) = [row["reason"] for row in run.events if row["event"] == "fault"]
    assert "rank 1 was killed by SIGKILL" in fault
    assert_same_as_alone(run, alone, within=1e-5)
    assert texts(run)
    assert texts(run) == texts(alone)
    wait_until_all_have_ended(run.path)


def test_a_profile_has_the_memory_of_the_gpu(life):
    run, _ = life
    (profile,) = [row for row in run.events if row["event"] == "profile"]
    assert [name.partition(".rank_0.")[2] for name in profile["files"]] == [
        "json.gz",
        "memory.pickle",
    ]
    assert all((run.path / name).stat().st_size for name in profile["files"])
    assert all("self_device_s" in operator for operator in profile["operators"])


def test_generate_and_export_give_what_they_give_on_the_cpu(life, tmp_path):
    run, _ = life
    made, without_gpus = [], gpu_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    for name, variables in (("gpu", gpu_environment()), ("cpu", without_gpus)):
        text = run_command(
            ["generate", str(run.path), "--prompt", "def ", "--max-tokens", "28", "--json"],
            variables,
        )
        exported = run_command(["export", str(run.path), str(tmp_path / name)], variables)
        assert (text.returncode, exported.returncode) == (0, 0), text.stderr + exported.stderr
        files = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        made.append((json.loads(text.stdout)["text"], files))
    assert made[0] == made[1]


def test_an_elastic_run_that_loses_a_gpu_continues_on_the_others(tmp_path):
    run, alone = Run(tmp_path / "run"), Run(tmp_path / "alone")
    words = [
        "model.rampup_batch_size=null",
        "model.global_batch_size=4",
        "data.micro_batch_size=1",
        "schedule.decay_style=constant",
        "trainer.precision=bf16",
        "trainer.val_samples=0",
        "checkpoint.every_steps=2",
        "checkpoint.async=true",
    ]
    elastic = ["launch.elastic=true", "launch.backoff_s=600", "trainer.num_nodes=2"]
    command = start(run, *words, *elastic, ENDLESS)
    wait_until(lambda: len(run.rows) >= 3, command)
    os.kill(children_of(command.pid)[1], signal.SIGKILL)
    wait_until(lambda: world_sizes(run) == [2, 1], command)
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate()
    assert command.returncode == 75, errors
    consumed = f"trainer.max_samples={run.state['consumed_samples']}"
    alone.workers(1, *words, *ALONE, consumed)
    assert_same_as_alone(run, alone, within=3e-3)
    wait_until_all_have_ended(run.path)
