"""Runs whose output is closed, or whose checkpoints were deleted."""

import json
import shlex
import subprocess

import pytest

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
