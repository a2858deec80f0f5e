"""What a search that is a job of Slurm leaves in files, and what others read from them."""

import json
import os
import sys

import pytest

from rampcli.cli import tune_search
from rampcli.errors import RampcliError, UsageError
from rampcli.runs.directory import RunDirectory
from rampcli.tune import job
from rampcli.tune.run import Search, folder_of
from rampcli.tune.trial_files import Effort
from run_files import chained_job
from searches import resolved_search, trial_of

EFFORT = Effort()


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    """A search that jobs do, with programs of Slurm that accept any job and list `enqueue`'s."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "queue").touch()
    does = {"sbatch": "echo 7", "squeue": f"cat {tmp_path}/queue", "scontrol": "true"}
    for name, line in does.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    return resolved_search(tmp_path / "run", "launch=slurm")


def enqueue(queue, directory, name):
    """Puts job 7 of a directory into the queue."""
    queue.write_text("\x1f".join(("7", "PENDING", name, "None", str(directory.path))) + "\x1e\n")


def submit(resolved, effort=EFFORT):
    return job.submit_search(Search(resolved, effort), print)


def test_a_command_finds_the_results_of_a_job_on_nodes_with_other_versions(resolved, monkeypatch):
    submit(resolved)
    with monkeypatch.context() as node:
        node.setattr("rampcli.tune.results.version", lambda _: "another version")
        search = job.search_of(folder_of(resolved))
        assert search.continue_with(trial_of)
    found = Search(resolved, EFFORT)
    assert found.known == search.known
    assert found.known


@pytest.mark.parametrize("waits", ["the search", "training"])
def test_a_search_that_is_refused_leaves_the_files_of_the_job_that_waits(resolved, waits, tmp_path):
    run = RunDirectory(resolved.run_dir)
    folder = folder_of(resolved)
    submit(resolved)
    search = job.search_of(folder)
    assert search.continue_with(trial_of)
    if waits == "the search":
        enqueue(tmp_path / "queue", folder, "llama3_tiny.tune")
    else:
        run.make_folder(run.path / "slurm")
        record = {"jobs": [chained_job()], "submitted": 1.0, "cancelled": False}
        run.write_json(run.path / "slurm/jobs.json", record)
        enqueue(tmp_path / "queue", run, chained_job()["name"])
    files = (run.path / "tune.json", folder.config, folder.path / "options.json")
    before = [path.read_bytes() for path in files]
    with pytest.raises(UsageError, match="has jobs in the queue: 7"):
        submit(resolved_search(run.path, "launch=slurm", "model.hidden_size=64"))
    assert [path.read_bytes() for path in files] == before


def test_a_job_that_dies_of_an_unforeseen_error_says_so_to_the_next_command(
    resolved, monkeypatch, tmp_path
):
    submit(resolved)
    monkeypatch.setattr(sys, "argv", ["job", str(tmp_path / "run/tune")])
    monkeypatch.setenv("PATH", "/nowhere")  # so srun is not found
    with pytest.raises(FileNotFoundError):
        job.main()
    with pytest.raises(
        RampcliError, match=r"the job of the search failed: FileNotFoundError.*srun"
    ):
        job.raise_failure(resolved)


def test_a_command_shows_the_search_of_the_job_in_the_queue_or_says_that_it_is_another(
    resolved, tmp_path, capsys
):
    def show(*words):
        asked = resolved_search(tmp_path / "run", "launch=slurm", *words)
        options = {"fresh": False, "exhaustive": False, "as_json": True, "plot": None}
        assert tune_search.search(asked, effort=EFFORT, **options) == 0
        return json.loads(capsys.readouterr().out)["trials"]

    submit(resolved, Effort(most_steps=1))
    search = job.search_of(folder_of(resolved))
    search.continue_with(lambda candidate: trial_of(candidate, times=[0.5]))
    enqueue(tmp_path / "queue", folder_of(resolved), "llama3_tiny.tune")
    capsys.readouterr()
    assert [trial["micro_batch_size"] for trial in show("optim.lr=2e-3")] == [1, 2, 4]
    with pytest.raises(UsageError, match=r"conditions \(model\.hidden_size") as refused:
        show("model.hidden_size=64")
    assert f"rampcli cancel {tmp_path}/run/tune" in refused.value.remedy
