"""Ranks that stand still: status names them while others wait, and the run ends as any other."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commands import Command
from processes import send, wait_until
from rampcli.data.loader import Loader
from rampcli.launch.status import RunStatus, read_status
from rampcli.report.standstill_text import ranks_text
from rampcli.runs import heartbeats, standstill
from rampcli.runs.heartbeats import Rank, read_ranks
from ranks import run_ranks, train_rank
from standing import stand_still_until
from tiny_runs import Run, assert_same_training, environment

WORDS = [
    "model.rampup_batch_size=null",
    "trainer.num_nodes=1",
    "trainer.devices=2",
    "data.micro_batch_size=4",
    "trainer.max_samples=320",
    "trainer.val_samples=0",
]
"""A run of 40 steps on two ranks."""
ENDLESS = [*WORDS, "schedule.decay_style=constant", "trainer.max_samples=8_000_000"]
"""A run that lasts until it is stopped, and whose learning rate does not depend on its length."""
OWN_PARTS = """\
import os

import numpy as np

from rampcli.extend import Documents, data_source, decay_style


def wait_on_rank_1(name):
    if os.environ.get("RANK") == "1":
        with open(os.path.join(os.path.dirname(__file__), name)) as file:
            file.read()


@data_source("slow")
def slow(config):
    wait_on_rank_1("source")
    return Documents(training=[np.arange(1000) % 64])


@decay_style("slow")
def decay(rate, step):
    if step.consumed_samples > 40:
        wait_on_rank_1("decay")
    return rate.peak
"""
"""Parts that hang on rank 1 as long as a FIFO beside this file has a reader."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Makes the reader call a rank silent, stuck or behind after seconds."""
    monkeypatch.setattr(heartbeats, "LEAST_SILENT_S", 3.0)
    monkeypatch.setattr(heartbeats, "SILENT_BEATS", 3)
    monkeypatch.setattr(heartbeats, "STUCK_S", 1.0)
    monkeypatch.setattr(standstill, "LEAST_QUIET_S", 1.0)


def wait_for_rank_1(run: Run, process=None) -> Rank:
    """Waits until both ranks have a file, and returns rank 1.

    Rank 0 removes all files at its start, also one that rank 1 has written already.
    """
    found: list[Rank] = []

    def both() -> bool:
        found[:] = read_ranks(run.directory).known
        return len(found) == 2

    wait_until(both, process)
    return found[1]


def wait_for_ranks(run: Run, text: str, process=None) -> dict:
    """Waits until the status says this of the ranks, and returns what its JSON has."""

    found: list[RunStatus] = []

    def said() -> str | None:
        found[:] = [read_status(run.directory)]
        standstill = found[0].standstill
        return None if standstill is None else ranks_text(standstill.ranks)

    wait_until(lambda: said() == text, process, evidence=said)
    return found[0].to_json()["standstill"]


def train_undisturbed(run: Run, tmp_path: Path, *words: str) -> Run:
    """Takes the steps of an endless run without a supervisor, and checks that they are the same."""
    undisturbed = Run(tmp_path / "undisturbed")
    samples = run.state["consumed_samples"]
    undisturbed.workers(2, *ENDLESS, *words, f"trainer.max_samples={samples}")
    assert_same_training(run, undisturbed)
    return undisturbed


def test_a_stopped_rank_is_named_and_the_run_goes_on_when_it_is_continued(run, tmp_path):
    supervisor = run.start(*ENDLESS)
    stopped = wait_for_rank_1(run, supervisor)
    wait_until(lambda: run.rows, supervisor)
    send(signal.SIGSTOP, [stopped.pid])
    where = f"(process {stopped.pid} on {os.uname().nodename})"
    found = wait_for_ranks(run, f"rank 1 {where} does not answer; rank 0 waits for it", supervisor)
    assert (found["behind"], found["waiting"]) == ([1], [0])
    assert [rank["answers"] for rank in found["ranks"]] == [True, False]
    steps = len(run.rows)
    send(signal.SIGCONT, [stopped.pid])
    wait_until(lambda: len(run.rows) > steps, supervisor)
    supervisor.send_signal(signal.SIGINT)
    supervisor.ends_with(130)
    assert not run.directory.heartbeats.exists()
    undisturbed = train_undisturbed(run, tmp_path)
    assert not undisturbed.directory.heartbeats.exists()


def test_a_rank_that_stays_stopped_ends_the_wait_of_the_others_and_the_run_is_restarted(
    run, tmp_path
):
    # Without checkpoints: ranks would wait longer for one that stops while it saves.
    words = ["checkpoint.every_steps=null"]
    supervisor = run.start(*ENDLESS, *words, "launch.step_timeout_s=4")
    stopped = wait_for_rank_1(run, supervisor)
    wait_until(lambda: run.rows, supervisor)
    send(signal.SIGSTOP, [stopped.pid])
    wait_until(lambda: [row["event"] for row in run.events].count("start") >= 2, supervisor)
    wait_until(lambda: run.rows, supervisor)
    supervisor.send_signal(signal.SIGINT)
    output, errors = supervisor.ends_with(130)
    named = "ranks waited 4 s for others, as launch.step_timeout_s allows"
    assert named in output + errors, (output, errors)
    train_undisturbed(run, tmp_path, *words)


@pytest.mark.parametrize(
    ("name", "words", "doing"),
    [
        ("source", ["data.source=slow", "trainer.max_samples=8"], "loading"),
        ("decay", ["schedule.decay_style=slow"], "computing a step"),
    ],
)
def test_a_rank_that_hangs_in_a_part_of_the_users_is_named_with_what_it_does(
    run, tmp_path, name, words, doing
):
    own = tmp_path / "own.py"
    own.write_text(OWN_PARTS)
    os.mkfifo(tmp_path / name)
    command = run.command(*WORDS, *words)[3:]
    supervisor = Command(command, environment() | {"RAMPCLI_EXTENSIONS": str(own)})
    hanging = wait_for_rank_1(run, supervisor)
    where = f"(process {hanging.pid} on {os.uname().nodename})"
    wait_for_ranks(run, f"rank 1 {where} is {doing}; rank 0 waits for it", supervisor)
    with (tmp_path / name).open("w"):  # lets rank 1 open the FIFO, and read until this is closed
        (tmp_path / "empty").touch()
        (tmp_path / "empty").rename(tmp_path / name)
    supervisor.ends_with(0)


def train_on_a_disk_that_hangs(run_dir: str, reads: str) -> None:
    """Trains as this rank. On rank 1, some reads last until there is a file `answers`."""
    read, answers = getattr(Loader, reads), os.path.join(run_dir, "answers")

    def read_late(*arguments):
        if os.environ["RANK"] == "1":
            stand_still_until(lambda: os.path.exists(answers))
        return read(*arguments)

    setattr(Loader, reads, read_late)
    try:
        train_rank(run_dir)
    finally:
        setattr(Loader, reads, read)


def test_a_rank_that_hangs_before_its_first_step_is_waited_for_as_long_as_a_start_may_take(
    run, tmp_path
):
    own = tmp_path / "own.py"
    own.write_text(OWN_PARTS)
    os.mkfifo(tmp_path / "source")  # rank 1 waits in vain for somebody to open it
    words = ["data.source=slow", "launch.start_timeout_s=4", "launch.max_restarts=0"]
    command = run.command(*WORDS, *words)[3:]
    supervisor = Command(command, environment() | {"RAMPCLI_EXTENSIONS": str(own)})
    _, errors = supervisor.ends_with(1)
    assert "(ranks waited 4 s for others, as launch.start_timeout_s allows" in errors


@pytest.mark.parametrize(
    ("reads", "doing"),
    [("read_micro_batches", "reading samples"), ("_share", "reading validation samples")],
)
def test_a_rank_whose_disk_hangs_is_named_before_the_first_step(run, reads, doing):
    run.describe(*WORDS, "trainer.max_samples=8", "trainer.val_samples=8")
    arguments = train_on_a_disk_that_hangs, str(run.path), reads
    with ThreadPoolExecutor() as threads:
        training = threads.submit(run_ranks, 2, *arguments, logs=run.directory.logs)
        where = f"(process {wait_for_rank_1(run).pid} on {os.uname().nodename})"
        wait_for_ranks(run, f"rank 1 {where} is {doing}; rank 0 waits for it")
        (run.path / "answers").touch()
        training.result()
    assert run.state["status"] == "complete"
