import json
import subprocess
import sys

import pytest

from rampcli.run_directory import RunDirectory
from run_files import coming, failure, metrics_row, state

COMMAND = [sys.executable, "-m", "rampcli"]


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.config.write_text("name: run\n")
    return directory


def rampcli(*words):
    return subprocess.run([*COMMAND, *words], text=True, capture_output=True, check=False)


def test_status_counts_the_steps_since_the_last_save_and_shows_how_to_resume(run):
    run.write_state(state(step=3, consumed_samples=12, next=coming()))
    run.append_row(run.metrics, metrics_row(step=5, consumed_samples=20, stage=1))
    told = rampcli("status", run.path)
    assert told.stdout == (
        "running: step 5, 20 samples, stage 1; nothing saved\n"
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


@pytest.mark.parametrize("command", ["status", "cancel"])
def test_a_folder_that_is_not_a_run_directory_is_refused(command, tmp_path):
    done = rampcli(command, tmp_path / "nowhere")
    assert (done.returncode, "is not a run directory" in done.stderr) == (2, True)


def test_a_dry_run_prints_the_scripts_and_submits_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    done = rampcli(
        "pretrain",
        "--factory",
        "gpt3_5b",
        "launch=slurm",
        "launch.slurm.partition=gpu",
        "--dry-run",
    )
    assert done.returncode == 0
    assert done.stdout.count("#!/bin/bash") == done.stdout.count("#SBATCH --partition=gpu") == 8
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_a_chain_is_refused_and_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    done = rampcli(
        "pretrain", "--factory", "llama3_tiny", f"run_dir={tmp_path}/run", "launch=slurm"
    )
    assert (
        done.returncode,
        "sbatch is not on PATH" in done.stderr,
        "launch=local" in done.stderr,
    ) == (1, True, True)


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
    assert told.stdout.count(r"\x1b[2J\u202e") == 3
    assert "\x1b" not in told.stdout
    assert "\u202e" not in told.stdout
