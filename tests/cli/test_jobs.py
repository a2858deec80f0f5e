import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "rampcli"]


def rampcli(*words):
    return subprocess.run([*COMMAND, *words], text=True, capture_output=True, check=False)


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
