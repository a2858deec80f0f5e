"""The command `rampcli status`, on files and on a run that trains meanwhile."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios

import pytest
from rich.cells import cell_len
from rich.console import Console

from processes import killed_at_the_end, wait_until
from rampcli.cli.status_table import COLUMNS, ListedRun, StatusTable, WatchedRuns
from rampcli.launch.status import read_status
from rampcli.runs.directory import RunDirectory
from run_files import coming, failure, metrics_row, state, submit, write_squeue
from tiny_runs import Run, environment

COMMAND = [sys.executable, "-m", "rampcli"]


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.config.write_text("name: run\n")
    return directory


def test_status_counts_the_steps_since_the_last_save_and_shows_how_to_resume(run, rampcli):
    run.write_state(state(step=3, consumed_samples=12, next=coming()))
    run.append_row(run.metrics, metrics_row(step=5, consumed_samples=20, stage=1))
    told = rampcli("status", str(run.path))
    assert told.stdout.endswith(
        "\n\nstep 5, 20 samples; nothing saved\n"
        "not training; resume with:\n  rampcli pretrain --factory x\n"
    )
    facts = json.loads(rampcli("status", str(run.path), "--json").stdout)
    known = {"status": "running", "step": 5, "supervisor": None, "jobs": []}
    assert {key: facts[key] for key in known} == known


def test_status_of_reinforcement_learning_counts_prompts(run, rampcli):
    run.config.write_text(
        "rl: {generations_per_prompt: 4}\ndata: {source: pairs, task: sort, document_mask: true}\n"
    )
    run.write_state(state(step=3, consumed_samples=12, next=coming()))
    assert "\nstep 3, 12 prompts;" in rampcli("status", str(run.path)).stdout


@pytest.mark.parametrize(
    ("status", "reported", "last_line"),
    [
        ("running", "RUNNING", "Priority"),
        ("running", "PENDING", "waiting in the queue"),
        ("preempted", "RUNNING", "not training; its job has not ended yet"),
    ],
)
def test_no_command_is_advised_that_the_jobs_of_the_run_would_not_allow(
    run, monkeypatch, rampcli, status, reported, last_line
):
    run.write_state(state(status=status, next=coming()))
    submit(run)
    write_squeue(run.path, run, reported)
    monkeypatch.setenv("PATH", f"{run.path}:/usr/bin:/bin")
    assert rampcli("status", str(run.path)).stdout.splitlines()[-1].endswith(last_line)


def test_status_without_slurm_shows_everything_else(run, monkeypatch, rampcli):
    run.write_state(
        {"status": "preempted", "step": 3, "consumed_samples": 12, "stage": 0, "next": None}
    )
    submit(run)
    monkeypatch.setenv("PATH", "")
    done = rampcli("status", str(run.path))
    assert done.exit_code == 0
    assert "jobs is unknown: squeue is not on PATH\nnot training\n" in done.stdout
    run.write_state(state(next=coming()))  # the run may be training on a node
    told = rampcli("status", str(run.path)).stdout
    assert told.endswith("jobs is unknown: squeue is not on PATH\n")


def test_status_of_a_failed_run_shows_the_remedy_instead_of_the_command(run, rampcli):
    run.write_state(state(status="failed", next=coming(), error=failure()))
    told = rampcli("status", str(run.path)).stdout
    assert "error: the disk is full\ntry:   a larger one\n" in told
    assert "resume with" not in told
    run.write_state(state(status="failed", next=coming(), error=failure(remedy=None)))
    told = rampcli("status", str(run.path)).stdout
    assert "resume with:\n  rampcli pretrain --factory x\n" in told


def test_control_characters_in_a_run_directory_are_escaped(run, rampcli):
    evil = "\x1b[2J\u202e"
    run.write_state(
        state(status=evil, next=coming(command=evil), error=failure(message=evil, remedy=evil))
    )
    told = rampcli("status", str(run.path))
    assert told.exit_code == 0
    assert told.stdout.count(r"\x1b[2J\u202e") == 3
    assert "\x1b" not in told.stdout
    assert "\u202e" not in told.stdout


@pytest.fixture
def folder(tmp_path):
    """A working folder with runs that were written to one after the other."""
    for age, name in enumerate(("new", "old", "odd")):
        run = RunDirectory(tmp_path / "runs" / name)
        run.claim()
        run.config.write_text("name: run\n")
        run.write_state(state(status="preempted", consumed_samples=4, next=coming()))
        os.utime(run.state, (1e9 - age, 1e9 - age))
    (tmp_path / "runs/odd/state.json").write_text("{")
    (tmp_path / "runs/foreign").mkdir()
    (tmp_path / "runs/foreign/config.yaml").write_text("another: program\n")
    os.mkfifo(tmp_path / "runs/pipe")
    return tmp_path


def test_without_words_all_runs_are_listed_the_newest_first_and_damage_hides_no_other(
    folder, rampcli
):
    (folder / "runs/odd/plan.json").symlink_to("/dev/zero")
    told = rampcli("status")
    rows = [line.split()[:2] for line in told.stdout.splitlines() if not line.startswith(" ")]
    assert (told.exit_code, told.stderr) == (0, "")
    assert rows == [
        ["run", "state"],
        ["odd", "damaged"],
        ["new", "interrupted"],
        ["old", "interrupted"],
    ]
    assert "  runs/odd/state.json is damaged" in told.stdout


@pytest.mark.usefixtures("folder")
def test_runs_are_named_by_path_or_by_name_and_shown_in_this_order(rampcli):
    told = rampcli("status", "old", "runs/new")
    assert [line.split()[0] for line in told.stdout.splitlines()[1::2]] == ["old", "runs/new"]
    mistyped = rampcli("status", "old", "nwe")
    assert (mistyped.exit_code, mistyped.stdout) == (2, "")


@pytest.mark.usefixtures("folder")
def test_json_is_an_object_for_one_named_run_and_a_list_otherwise(rampcli):
    one = json.loads(rampcli("status", "old", "--json").stdout)
    several = json.loads(rampcli("status", "--json").stdout)
    assert (one["path"], one["state"], one["status"]) == ("runs/old", "interrupted", "preempted")
    assert [each["path"] for each in several] == ["runs/odd", "runs/new", "runs/old"]
    assert "is damaged" in several[0]["problem"]
    assert several[2] == one


def test_an_empty_folder_gets_a_helpful_sentence(rampcli):
    told = rampcli("status")
    assert (told.exit_code, told.stderr) == (0, "")
    assert "rampcli pretrain" in told.stdout
    assert json.loads(rampcli("status", "--json").stdout) == []


def test_a_run_is_watched_while_it_trains_and_ctrl_c_ends_watching_alone(tmp_path, rampcli):
    run = Run(tmp_path / "runs" / "watched")
    command = run.start("trainer.num_nodes=1", "model.rampup_batch_size=null", LONG)
    try:
        wait_until(lambda: len(run.rows) > 5)
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        watching = subprocess.Popen(
            [*COMMAND, "status", "--watch"],
            cwd=tmp_path,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment() | {"TERM": "xterm"},
        )
        os.close(terminal)
        shown = b""
        with killed_at_the_end(watching):
            while len(set(STEPS.findall(shown))) < 2:  # two pictures, two seconds apart
                shown += os.read(controller, 65536)
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 130
        os.close(controller)
        assert b"training" in shown
        lines = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode().splitlines()
        assert max(map(len, lines)) <= 80
        assert command.poll() is None
    finally:
        command.terminate()
        command.wait()
    after = json.loads(rampcli("status", "--json").stdout)[0]
    assert (after["state"], after["saved_step"]) == ("interrupted", after["step"])
    assert 0 < after["goodput"] < 1
    assert after["run_left_s"] > 0


LONG = "trainer.max_samples=8_000_000"
STEPS = re.compile(rb"([0-9.]+[KM]?)/8.00M")
"""Samples of the run that is watched."""


def test_a_run_that_is_deleted_and_starts_again_is_watched_from_its_new_events(run):
    seen = WatchedRuns([str(run.path)])
    run.write_state(state(next=coming()))
    events = (
        ("launch", 100.0, {}),
        ("start", 140.0, {"step": 0}),
        ("stop", 150.0, {"step": 1, "status": "preempted", "save_s": 0.0}),
        ("exit", 150.0, {}),
    )
    for kind, at, facts in events:
        run.append_row(run.events, {"event": kind, "time": at, **facts})
    assert seen.read()[0].status.goodput == pytest.approx(0.2)
    run.set_aside(run.events)  # keeps the inode of the old file in use
    for kind, at, facts in events:
        run.append_row(run.events, {"event": kind, "time": 2 * at, "x": "longer", **facts})
    assert seen.read()[0].status.goodput == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["a long name of a run", "训练" * 5])
def test_the_table_colours_the_state_alone_and_fits_the_width(run, name):
    run.write_state(state(status="failed", error=failure()))
    listed = [ListedRun(name=name, status=read_status(run))]
    console = Console(file=io.StringIO(), width=60, force_terminal=True, _environ={"TERM": "xterm"})
    console.print(StatusTable(listed))
    printed = console.file.getvalue()
    assert re.findall(r"\x1b\[31m(.*?)\x1b", printed) == ["failed"]
    assert max(map(cell_len, re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines())) <= 60


@pytest.mark.parametrize(
    ("width", "dropped"), [(80, set()), (58, {"nodes"}), (51, {"nodes", "batch"})]
)
def test_a_narrow_terminal_shows_the_time_left_rather_than_nodes_and_batch(run, width, dropped):
    run.write_state(state())
    listed = [ListedRun(name="a run with a name", status=read_status(run))]
    console = Console(file=io.StringIO(), width=width)
    console.print(StatusTable(listed))
    head = console.file.getvalue().splitlines()[0].split()
    assert {*COLUMNS} - {*head} == dropped
    assert head[-1] == "left"
