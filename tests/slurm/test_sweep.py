"""A sweep whose runs are jobs."""

import json

from commands import run_command
from processes import wait_until
from rampcli.launch.slurm import chain
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.runs.directory import RunDirectory
from tiny_runs import TINY, environment


def test_runs_are_submitted_once_and_their_results_are_shown_before_and_after_they_end(
    tmp_path,
    cluster,  # noqa: ARG001
):
    folder = tmp_path / "sweep"
    settings = TINY | {
        "run_dir": str(folder),
        "launch": "slurm",
        "model.rampup_batch_size": "null",
        "trainer.max_samples": "16",
        "optim.lr": "1e-3,1e-2",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    runs = [RunDirectory(folder / f"optim.lr={lr}") for lr in ("0.001", "0.01")]

    def rampcli(*command):
        done = run_command([*command], environment())
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    submitted = rampcli("sweep", "--factory", "llama3_tiny", *words)
    jobs = [chain.read(run).jobs[0].job for run in runs]
    for number, (run, job) in enumerate(zip(runs, jobs, strict=True), start=1):
        line = f"run {number} of 2: {run.path.name}: submitted {job}"
        assert line in submitted.splitlines()
    again = rampcli("sweep", "--factory", "llama3_tiny", *words)
    assert ": submitted" not in again
    assert [chain.read(run).jobs[0].job for run in runs] == jobs
    wait_until(
        lambda: not any(LAUNCHER.active_jobs(run) for run in runs),
        evidence=lambda: [path.read_text() for path in folder.rglob("*.log")],
    )
    facts = json.loads(rampcli("report", str(folder), "--json"))
    assert [run["state"] for run in facts["runs"]] == ["complete", "complete"]
    assert facts["best"] in [run["run_dir"] for run in facts["runs"]]
    assert "complete" in rampcli("sweep", "--factory", "llama3_tiny", *words)
