"""`rampcli tune` as a job."""

import json
import os
import signal

import pytest

from commands import run_command
from processes import command_of, processes_with, wait_until
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.runs.directory import RunDirectory
from tiny_runs import TINY, environment

HANGS = """\
import sys, time

if any(word.endswith("/micro_1") for word in sys.argv):
    time.sleep(1000)
"""
"""An extension at whose import the ranks of a trial hang."""


@pytest.fixture
def tune(tmp_path, cluster):  # noqa: ARG001
    """Runs `rampcli tune` for a run on two nodes of one process. The trial of size 1 hangs."""
    hangs = tmp_path / "hangs.py"
    hangs.write_text(HANGS)

    def run(*options):
        settings = TINY | {
            "run_dir": str(tmp_path / "run"),
            "launch": "slurm",
            "trainer.num_nodes": "2",
            "model.rampup_batch_size": "null",
            "model.global_batch_size": "4",
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        search = ["tune", "--factory", "llama3_tiny", "--steps", "2", *options, *words]
        return run_command(search, environment() | {"RAMPCLI_EXTENSIONS": str(hangs)})

    run.path = tmp_path / "run"
    run.folder = RunDirectory(run.path / "tune")
    return run


def wait_for(what, tune):
    logs = tune.folder.logs
    wait_until(what, evidence=lambda: [path.read_text() for path in sorted(logs.glob("*"))])


def ranks_of(tune, micro_batch_size):
    """Returns the processes of a trial's ranks, without the srun that starts them."""
    words = f"rampcli.tune.rank {tune.path}/tune/micro_{micro_batch_size}"
    return [
        process for process in processes_with(words) if not command_of(process).startswith("srun")
    ]


def cancel(tune):
    done = run_command(["cancel", str(tune.folder.path)], environment())
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not LAUNCHER.active_jobs(tune.folder), tune)


def test_a_failed_job_says_why_and_the_next_one_keeps_its_trials_when_it_is_cancelled(tune):
    with_error = tune("""launch.slurm.environment=["GLOO_SOCKET_IFNAME=nowhere"]""")
    assert with_error.returncode == 0, with_error.stderr
    assert "the same command shows what the job has found" in with_error.stdout
    wait_for(lambda: not LAUNCHER.active_jobs(tune.folder), tune)
    told = tune()
    assert told.returncode == 1
    assert (
        "the job of the search failed: the trial of data.micro_batch_size=2 failed" in told.stderr
    )
    submitted = tune()
    assert submitted.returncode == 0, submitted.stderr
    wait_for(lambda: ranks_of(tune, 1), tune)
    (trial,) = json.loads((tune.path / "tune.json").read_text())["trials"]
    assert (trial["micro_batch_size"], trial["verdict"]) == (2, "fits")
    assert trial["world_size"] == 2
    for rank in ranks_of(tune, 1)[-1:]:
        os.kill(rank, signal.SIGSTOP)  # a rank that hangs is ended as well
    cancel(tune)
    wait_for(lambda: not ranks_of(tune, 1), tune)
    again = tune("--json")
    assert json.loads(again.stdout)["trials"] == [trial]
    cancel(tune)
