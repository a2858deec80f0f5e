"""The command `rampcli status`, on files and on a run that trains meanwhile."""

import fcntl
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

from commands import run_command
from processes import wait_until
from rampcli.run_directory import RunDirectory
from run_files import coming, failure, metrics_row, state
from runs import Run, environment

COMMAND = [sys.executable, "-m", "rampcli"]


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.config.write_text("name: run\n")
    return directory


def rampcli(*words, cwd=None):
    return run_command([*map(str, words)], cwd=cwd)


def test_status_counts_the_steps_since_the_last_save_and_shows_how_to_resume(run):
    run.write_state(state(step=3, consumed_samples=12, next=coming()))
    run.append_row(run.metrics, metrics_row(step=5, consumed_samples=20, stage=1))
    told = rampcli("status", run.path)
    assert told.stdout.endswith(
        "\n\nrunning: step 5, 20 samples, stage 1; nothing saved\n"
        "not training; resume with:\n  rampcli pretrain --factory x\n"
    )
    facts = json.loads(rampcli("status", run.path, "--json").stdout)
    assert (facts["status"], facts["step"], facts["supervisor"], facts["jobs"]) == (
        "running",
        5,
        None,
        [],
    )


def test_status_of_reinforcement_learning_counts_prompts(run):
    run.config.write_text(
        "rl: {generations_per_prompt: 4}\ndata: {source: pairs, task: sort, document_mask: true}\n"
    )
    run.write_state(state(step=3, consumed_samples=12, next=coming()))
    assert "running: step 3, 12 prompts, stage 0" in rampcli("status", run.path).stdout


def test_status_of_a_failed_run_shows_the_error(run):
    run.write_state(state(status="failed", next=coming(), error=failure()))
    assert "error: the disk is full\ntry:   a larger one\n" in rampcli("status", run.path).stdout


def test_status_without_slurm_shows_everything_else(run, monkeypatch):
    run.write_state(
        {"status": "preempted", "step": 3, "consumed_samples": 12, "stage": 0, "next": None}
    )
    (run.path / "slurm").mkdir()
    job = {
        "job": "7",
        "name": "run.stage0",
        "stages": [0],
        "num_nodes": 1,
        "global_batch_sizes": [4],
    }
    job |= {"script": "slurm/stage_0.sbatch", "dependency": None}
    (run.path / "slurm/jobs.json").write_text(
        json.dumps({"jobs": [job], "submitted": 1.0, "cancelled": False})
    )
    monkeypatch.setenv("PATH", "")
    done = rampcli("status", run.path)
    assert done.returncode == 0
    assert "jobs is unknown: squeue is not on PATH\nnot training\n" in done.stdout


def test_status_of_a_failed_run_shows_the_remedy_instead_of_the_command(run):
    run.write_state(state(status="failed", next=coming(), error=failure()))
    assert "resume with" not in rampcli("status", run.path).stdout
    run.write_state(state(status="failed", next=coming(), error=failure(remedy=None)))
    assert "resume with:\n  rampcli pretrain --factory x\n" in rampcli("status", run.path).stdout


def test_control_characters_in_a_run_directory_are_escaped(run):
    evil = "\x1b[2J\u202e"
    run.write_state(
        state(status=evil, next=coming(command=evil), error=failure(message=evil, remedy=evil))
    )
    told = rampcli("status", run.path)
    assert told.returncode == 0
    assert told.stdout.count(r"\x1b[2J\u202e") == 4  # the table shows the state too
    assert "\x1b" not in told.stdout
    assert "\u202e" not in told.stdout


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with runs that were written to one after the other."""
    monkeypatch.chdir(tmp_path)
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


def test_without_words_all_runs_are_listed_the_newest_first_and_damage_hides_no_other(folder):
    (folder / "runs/odd/plan.json").symlink_to("/dev/zero")
    told = rampcli("status")
    rows = [line.split()[:2] for line in told.stdout.splitlines() if not line.startswith(" ")]
    assert (told.returncode, told.stderr) == (0, "")
    assert rows == [
        ["run", "state"],
        ["odd", "damaged"],
        ["new", "interrupted"],
        ["old", "interrupted"],
    ]
    assert "  runs/odd/state.json is damaged" in told.stdout


@pytest.mark.usefixtures("folder")
def test_runs_are_named_by_path_or_by_name_and_shown_in_this_order():
    told = rampcli("status", "old", "runs/new")
    assert [line.split()[0] for line in told.stdout.splitlines()[1::2]] == ["old", "runs/new"]
    mistyped = rampcli("status", "old", "nwe")
    assert (mistyped.returncode, mistyped.stdout) == (2, "")


@pytest.mark.usefixtures("folder")
def test_json_is_an_object_for_one_named_run_and_a_list_otherwise():
    one = json.loads(rampcli("status", "old", "--json").stdout)
    several = json.loads(rampcli("status", "--json").stdout)
    assert (one["path"], one["state"], one["status"]) == ("runs/old", "interrupted", "preempted")
    assert [each["path"] for each in several] == ["runs/odd", "runs/new", "runs/old"]
    assert "is damaged" in several[0]["problem"]
    assert several[2] == one


def test_an_empty_folder_gets_a_helpful_sentence(tmp_path):
    told = rampcli("status", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert "rampcli pretrain" in told.stdout
    assert json.loads(rampcli("status", "--json", cwd=tmp_path).stdout) == []


def test_a_run_is_watched_while_it_trains_and_ctrl_c_ends_watching_alone(tmp_path):
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
    after = json.loads(rampcli("status", "--json", cwd=tmp_path).stdout)[0]
    assert (after["state"], after["saved_step"]) == ("interrupted", after["step"])
    assert 0 < after["goodput"] < 1
    assert after["run_left_s"] > 0


LONG = "trainer.max_samples=8_000_000"
STEPS = re.compile(rb"([0-9.]+[KM]?)/8.00M")
"""Samples of the run that is watched."""
