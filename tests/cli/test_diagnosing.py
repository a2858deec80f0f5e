"""`rampcli tune --diagnose` names bottlenecks that are planted, and none that is not there."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from commands import Command
from hostile.namespaces import move_to_host, slow_host
from processes import children_of, wait_until
from rampcli.tune.diagnosis import DATA, GRADIENTS, THREADS
from runs import TINY, environment
from slow_disk import read_slowly

LONGER = {
    "data.sequence_length": "512",
    "model.hidden_size": "64",
    "model.ffn_hidden_size": "256",
    "parallel.data_parallel_shard_size": "1",
}
"""Many tokens and few weights: an ordinary network is no bottleneck."""


@pytest.fixture
def words(tmp_path):
    """Returns the words of a diagnosis with some ranks in a run directory of its own."""

    def build(settings=None, *, options=("--json",), ranks=1):
        settings = (
            TINY
            | {
                "model.rampup_batch_size": "null",
                "model.global_batch_size": str(2 * ranks),
                "trainer.val_samples": "0",
                "trainer.devices": str(ranks),
                "trainer.num_nodes": "1",
                "run_dir": str(tmp_path / "run"),
            }
            | (settings or {})
        )
        return [
            *("tune", "--diagnose", "--factory", "llama3_tiny", "--steps", "9", *options),
            *(f"{key}={value}" for key, value in settings.items()),
        ]

    return build


@pytest.fixture
def diagnose(words):
    """Runs a diagnosis; returns messages about bottlenecks, and shares, by part of the step."""

    def run(settings=None, *, ranks=1, prepare=None):
        command = Command(words(settings, ranks=ranks), environment(), prepare=prepare)
        output, errors = command.communicate()
        assert command.returncode == 0, errors
        found = json.loads(output)
        messages = {one["what"]: one["message"] for one in found["bottlenecks"]}
        return messages, {one["what"]: one["share"] for one in found["parts"]}

    return run


def test_a_slow_disk_is_named_and_takes_more_of_the_step_than_a_fast_one(diagnose):
    slow, shares = diagnose(prepare=partial(read_slowly, 0.2))
    assert next(iter(slow)) == DATA
    assert "rampcli data build" in slow[DATA]
    assert "data.path on a faster disk" in slow[DATA]
    assert diagnose()[1][DATA] < shares[DATA] / 2


def test_a_slow_network_is_named_and_takes_more_of_the_step_than_an_ordinary_one(diagnose):
    with slow_host("20mbit") as host:
        slow, shares = diagnose(LONGER, ranks=2, prepare=partial(move_to_host, host))
    assert next(iter(slow)) == GRADIENTS
    assert "raise trainer.accumulate_grad_batches" in slow[GRADIENTS]
    assert diagnose(LONGER, ranks=2)[1][GRADIENTS] < shares[GRADIENTS] / 2


def test_more_threads_than_processors_are_named_with_a_smaller_number_that_is_faster(words):
    done = subprocess.run(  # not forked, because OpenMP has to start with its variables
        [sys.executable, "-m", "rampcli", *words()],
        # By default, MKL starts no more threads than the machine has cores.
        env=environment() | {"OMP_NUM_THREADS": "16", "MKL_DYNAMIC": "FALSE"},
        preexec_fn=partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["threads"] == 16
    assert {time["threads"] for time in found["times"]} == {None, 8, 4, 2, 1}
    worst, faster = found["bottlenecks"][0], found["excess_threads"]["threads"]
    assert worst["what"] == THREADS
    assert worst["message"].endswith(f": OMP_NUM_THREADS={faster}")


def test_the_table_shows_each_part_of_the_step_with_its_spread(words):
    command = Command(words(options=()), environment())
    output, errors = command.communicate()
    assert command.returncode == 0, errors
    described, _, step, *parts = output.splitlines()
    assert described == "diagnosing a step of 1 micro batch of 2 per rank, on 1 rank"
    assert step.split()[:2] == ["the", "step"]
    assert step.split()[3:5] == ["100%", "+-"]
    assert [line.strip().split("  ")[0] for line in parts[:3]] == [
        "waiting for data",
        "work that does not depend on the tokens",
        "computing",
    ]
    assert all(" to " in line for line in parts[:3])


def test_a_diagnosis_that_is_interrupted_ends_with_130_and_leaves_no_process(words):
    command = Command(words(options=()), environment())
    wait_until(lambda: children_of(command.pid), command)
    (rank,) = children_of(command.pid)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate()
    assert command.returncode == 130
    assert output.endswith("interrupted\n")
    assert children_of(command.pid) == []
    wait_until(lambda: rank not in children_of(1))
