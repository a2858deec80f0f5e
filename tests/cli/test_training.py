"""Runs whose output is closed, whose checkpoints were deleted, or whose settings change."""

import json
import shlex
import subprocess

import pytest

from commands import run_command
from rampcli.runs.manifest import complete_checkpoints
from rampcli.runs.rows import read_rows
from tiny_runs import Run, environment

WORDS = ["model.rampup_batch_size=null", "trainer.num_nodes=1", "trainer.val_samples=0"]


@pytest.fixture(scope="module")
def unread(tmp_path_factory):
    """A run whose output is closed after the first line, and how its command ended."""
    run = Run(tmp_path_factory.mktemp("unread") / "run")
    command = shlex.join(run.command(*WORDS, "trainer.max_samples=8_000_000"))
    piped = f"set -o pipefail; {command} | head -1"
    return run, subprocess.run(
        ["bash", "-c", piped], env=environment(), text=True, capture_output=True, check=False
    )


def test_a_run_whose_output_is_closed_saves_and_reports_it(unread):
    run, done = unread
    assert done.returncode == 75, done.stderr
    assert "error: standard output was closed; stopped after" in done.stderr
    assert (run.state["status"], len(complete_checkpoints(run.directory))) == ("preempted", 1)


def test_a_run_whose_checkpoints_were_deleted_starts_over_and_keeps_its_old_metrics(
    unread,
):
    run, _ = unread
    before = run.directory.metrics.read_text()
    for checkpoint in complete_checkpoints(run.directory):
        run.directory.remove_tree(checkpoint.path)
    done = run.pretrain(*WORDS, "trainer.max_samples=16")
    assert done.returncode == 0, done.stderr
    aside = run.path / "metrics.1.jsonl"
    assert "has no checkpoint: the run starts again at step 0; its old metrics" in done.stdout
    assert aside.read_text() == before
    assert [row["step"] for row in run.rows] == [1, 2]
    assert [json.loads(line)["step"] for line in before.splitlines()] == [
        row["step"] for row in read_rows(aside)
    ]


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A complete run of two steps."""
    run = Run(tmp_path_factory.mktemp("changed") / "run")
    words = [*WORDS, "optim.warmup_samples=1", "trainer.max_samples=16", "optim.lr=0.002"]
    done = run.pretrain(*words)
    assert done.returncode == 0, done.stderr
    return run, words


def test_a_complete_run_is_shown_with_the_settings_it_was_trained_with(two_steps):
    run, words = two_steps
    before = run.directory.config.read_text()
    again = run.pretrain(*words[:-1], "optim.lr=0.001").stdout
    assert "note: this run was trained with optim.lr=0.002, not optim.lr=0.001" in again
    assert "already complete" in again
    assert "note:" not in run.pretrain(*words).stdout
    assert run.directory.config.read_text() == before


def test_every_setting_that_changes_on_a_resume_is_said_and_recorded(two_steps):
    run, words = two_steps
    resumed = run.pretrain(*words, "trainer.max_samples=24", "optim.weight_decay=0").stdout
    told = [line for line in resumed.splitlines() if line.startswith(("note: ", "warning: "))]
    assert told[:2] == [
        "note: trainer.max_samples changes from 16 to 24 after step 2",
        "note: optim.weight_decay changes from 0.1 to 0.0 after step 2",
    ]
    assert told[2].startswith("warning: the learning rate jumps: step 2 had 3.00e-04, and has ")
    assert [row["setting"] for row in read_rows(run.directory.events) if "setting" in row] == [
        "trainer.max_samples",
        "optim.weight_decay",
    ]
    report = run_command(["report", str(run.path)]).stdout
    assert "optim.weight_decay changed from 0.1 to 0.0 after step 2" in report
    assert "warning: the learning rate jumps" in report
    shown = json.loads(run_command(["report", str(run.path), "--json"]).stdout)["runs"][0]
    assert [(one["step"], one["old"], one["new"]) for one in shown["changes"]] == [
        (2, "16", "24"),
        (2, "0.1", "0.0"),
    ]
