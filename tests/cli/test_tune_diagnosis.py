"""`rampcli tune --diagnose` names bottlenecks that are planted, and shows the parts of a step."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch

from commands import Command
from hostile.namespaces import move_to_host, slow_host
from once import make_once
from processes import children_of, wait_until
from rampcli.train.loop import Trainer
from rampcli.tune.diagnose import Bench
from rampcli.tune.diagnosis import DIAGNOSIS_FILE, SO_FAR, PartName, read_diagnosis
from rampcli.tune.median import FEWEST
from slow_disk import read_slowly
from standing import stand_still_until
from tiny_runs import TINY, environment

REPLICATED = {
    "model.hidden_size": "64",
    "model.ffn_hidden_size": "256",
    "parallel.data_parallel_shard_size": "1",
}
"""Half a megabyte of gradients in each step."""

OWN_OPTIMIZER = """\
import torch
import torch.distributed as dist

from rampcli.extend import optimizer


class Together(torch.optim.SGD):
    def step(self, closure=None):
        dist.barrier()
        return super().step(closure)


@optimizer("together")
def together(parameters, optim):
    return Together(parameters.values(), lr=optim.lr)
"""
"""An optimiser whose ranks wait for each other."""


@pytest.fixture
def words(tmp_path):
    """Returns the words of a diagnosis with some ranks in a run directory of its own."""

    def build(settings=None, *, options=("--json", "--steps", "9"), ranks=1):
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
            *("tune", "--diagnose", "--factory", "llama3_tiny", *options),
            *(f"{key}={value}" for key, value in settings.items()),
        ]

    return build


@pytest.fixture
def diagnose(words):
    """Runs a diagnosis; returns messages about bottlenecks, and seconds, by part of the step."""

    def run(settings=None, *, ranks=1, prepare):
        command = Command(words(settings, ranks=ranks), environment(), prepare=prepare)
        output, errors = command.communicate()
        assert command.returncode == 0, errors
        found = json.loads(output)
        messages = {one["what"]: one["message"] for one in found["bottlenecks"]}
        return messages, {one["what"]: one["s"] for one in found["parts"]}

    return run


@pytest.fixture
def ordinary(words, tmp_path, tmp_path_factory):
    """Returns what a diagnosis of two ranks prints, and seconds by part of the step."""

    def make(folder):
        command = Command(
            words(REPLICATED, options=("--steps", str(FEWEST)), ranks=2), environment()
        )
        output, errors = command.communicate()
        assert command.returncode == 0, errors
        (folder / "printed.txt").write_text(output)
        shutil.copy(tmp_path / "run" / "tune" / "diagnose" / DIAGNOSIS_FILE, folder)

    folder = make_once(tmp_path_factory, "ordinary_diagnosis", make)
    parts = read_diagnosis(folder).parts
    return (folder / "printed.txt").read_text(), {part.what: part.s for part in parts}


def test_a_slow_disk_is_named_and_takes_longer_than_an_ordinary_one(diagnose, ordinary):
    slow, seconds = diagnose(prepare=partial(read_slowly, 0.2))
    assert next(iter(slow)) == PartName.DATA
    assert "rampcli data build" in slow[PartName.DATA]
    assert "data.path on a faster disk" in slow[PartName.DATA]
    assert ordinary[1][PartName.DATA] < seconds[PartName.DATA] / 2


def test_a_slow_network_is_named_and_takes_longer_than_an_ordinary_one(diagnose, ordinary):
    with slow_host("20mbit") as host:
        slow, seconds = diagnose(REPLICATED, ranks=2, prepare=partial(move_to_host, host))
    assert next(iter(slow)) == PartName.GRADIENTS
    assert "raise trainer.accumulate_grad_batches" in slow[PartName.GRADIENTS]
    assert ordinary[1][PartName.GRADIENTS] < seconds[PartName.GRADIENTS] / 2


def test_no_rank_takes_a_step_alone_with_an_optimiser_that_may_need_the_others(words, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN_OPTIMIZER)
    options = ("--json", "--steps", str(FEWEST))
    command = Command(
        words({"optim.optimizer": "together"}, options=options, ranks=2),
        environment() | {"RAMPCLI_EXTENSIONS": str(own)},
    )
    output, errors = command.communicate()
    assert command.returncode == 0, errors
    assert set(json.loads(output)["not_measured"].items()) == {
        (part, "optim.optimizer=together, a part of your own, may need the other ranks")
        for part in (PartName.WAITING, PartName.NEIGHBOURS, PartName.FIXED)
    }


def take_longer_the_more_threads_there_are() -> None:
    """Lets each of four threads add to the time of a step, as if they shared a processor.

    The time is not measured, which other programs of this machine would change.
    """
    torch.set_num_threads(4)
    take_step = Trainer.take_step

    def called(trainer, batch):
        return replace(take_step(trainer, batch), step_time_s=0.004 * torch.get_num_threads())

    Trainer.take_step = called


def test_more_threads_than_are_of_use_are_named_with_the_number_that_is_fastest(words):
    command = Command(words(), environment(), prepare=take_longer_the_more_threads_there_are)
    output, errors = command.communicate()
    assert command.returncode == 0, errors
    found = json.loads(output)
    assert found["threads"] == 4
    assert {time["threads"] for time in found["times"]} == {None, 2, 1}
    worst, fastest = found["bottlenecks"][0], found["excess_threads"]["threads"]
    assert (worst["what"], fastest) == (PartName.THREADS, 1)
    assert worst["message"].endswith(": set OMP_NUM_THREADS=1")


def test_the_table_shows_each_part_of_the_step_with_its_spread(ordinary):
    printed, seconds = ordinary
    described, _, step, *rows = printed.splitlines()
    assert described == "diagnosing a step of 1 micro batch of 2 per rank, on 2 ranks"
    assert step.split()[:2] == ["the", "step"]
    assert step.split()[3:5] == ["100%", "+-"]
    parts = [row.strip().split("  ")[0] for row in rows[: len(seconds)]]
    assert (
        parts
        == [*seconds]
        == [
            PartName.DATA,
            PartName.GRADIENTS,
            PartName.WAITING,
            PartName.NEIGHBOURS,
            PartName.FIXED,
            PartName.TOKENS,
        ]
    )
    assert all(" to " in row for row in rows[: len(seconds)])


def stand_still_once_there_is(file: str) -> None:
    """Lets ranks stand still once there is a file, until they are asked to stop."""
    seconds_of = Bench.seconds_of

    def called(bench, condition):
        request = bench.stopper.request
        stand_still_until(lambda: request.asked or not os.path.exists(file))
        return seconds_of(bench, condition)

    Bench.seconds_of = called


def test_a_diagnosis_that_is_interrupted_shows_its_rounds_and_leaves_no_process(words, tmp_path):
    so_far = tmp_path / "run" / "tune" / "diagnose" / SO_FAR
    stand_still = partial(stand_still_once_there_is, str(so_far))
    command = Command(words(options=()), environment(), prepare=stand_still)
    wait_until(so_far.exists, command)
    (rank,) = children_of(command.pid)
    command.send_signal(signal.SIGINT)
    output, _ = command.communicate()
    assert command.returncode == 130
    assert re.search(r"\n  computing +\d\.\d{4} +\d+% +\d+% to \d+%\n", output)
    assert re.search(r"\ninterrupted after \d+ rounds?(: .*)?\n$", output)
    wait_until(lambda: not os.path.exists(f"/proc/{rank}"))
