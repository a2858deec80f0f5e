"""What a search that is a job of Slurm leaves in files, and what others read from them."""

import os

import pytest

from rampcli.run_directory import RunDirectory
from rampcli.tune import job
from rampcli.tune.run import Search, folder_of
from rampcli.tune.trial import Effort
from searches import resolved_search, trial_of


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    """A search that jobs do, with programs of Slurm that accept any job and list none."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, prints in (("sbatch", "7"), ("squeue", ""), ("scontrol", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{prints}'\n")
        (tmp_path / name).chmod(0o755)
    return resolved_search(tmp_path / "run", "launch=slurm")


def submit(resolved):
    return job.submit(resolved, Effort(), fresh=False, exhaustive=False, report=print)


def test_a_command_finds_the_results_of_a_job_on_nodes_with_other_versions(resolved, monkeypatch):
    run = RunDirectory(resolved.run_dir)
    submit(resolved)
    with monkeypatch.context() as node:
        node.setattr("rampcli.tune.results.version", lambda _: "another version")
        search, _ = job.search_of(folder_of(run))
        assert search.continue_with(trial_of)
    found = Search.of(resolved, run, Effort(), fresh=False, exhaustive=False)
    assert found.known == search.known
    assert found.known
