"""Runs that train as chains of real jobs. `test_policy` loses a node."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from commands import run_command
from planted import plant_modules
from processes import environment_of, is_pending, paused, processes_with, wait_until
from rampcli.launch.run import run as pretrain
from rampcli.launch.slurm.scripts import SIGNAL_MARGIN_S
from rampcli.runs.manifest import complete_checkpoints
from tiny_runs import Run, assert_every_sample_is_read_once, assert_same_training, environment

# Steps without end, so that there is time to disturb the run.
ENDLESS = [
    "trainer.max_samples=1_000_000",
    "trainer.val_every_steps=5",
    "schedule.decay_style=constant",
    "launch.max_restarts=0",
]
FIXED = ["model.rampup_batch_size=null", "model.global_batch_size=4", "rampup.node_policy=fixed"]
PHASES = [
    "phases.short.until=steps:2",
    "phases.short.data.sequence_length=8",
    "phases.short.trainer.num_nodes=1",
    "phases.long.until=null",
]
GRACE_S = 300
JOIN = """
import torch.distributed as dist
from rampcli.settings.trainer import TrainerConfig
from rampcli.worker.join import join_ranks
join_ranks(TrainerConfig(accelerator="cpu"), timeout_s=300)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path, cluster):  # noqa: ARG001
    """A run whose jobs are submitted to the cluster."""
    return Run(tmp_path / "run")


def assert_equals_undisturbed(run, ranks, *words):
    """Checks that ranks which are not disturbed reach the same losses with the same samples."""
    assert_every_sample_is_read_once(run)
    undisturbed = Run(run.path.with_name("undisturbed"))
    consumed = run.rows[-1]["consumed_samples"]
    words = [*ENDLESS, *FIXED, *words, f"trainer.max_samples={consumed}"]
    done = undisturbed.pretrain(*words, f"trainer.num_nodes={ranks}")
    assert done.returncode == 0, done.stderr
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert run.validations()
    assert run.validations().items() <= undisturbed.validations().items()


def rampcli(command, run, *options):
    done = run_command([command, str(run.path), *options], environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobs(run):
    return [job["job"] for job in json.loads((run.path / "slurm/jobs.json").read_text())["jobs"]]


def logs(run):
    return "\n".join(
        f"== {path.name}\n{path.read_text()[-2000:]}"
        for path in sorted(run.directory.logs.glob("*.log"))
    )


def wait_for(run, what):
    wait_until(what, evidence=lambda: logs(run))


def submit(run, *words):
    done = run.pretrain("launch=slurm", *words)
    assert done.returncode == 0, done.stderr
    assert all(job in done.stdout for job in jobs(run))


def wait_for_rows(run, more):
    before = len(run.rows)
    wait_for(run, lambda: len(run.rows) >= before + more)


def wait_until_complete(run, cluster):
    wait_for(run, lambda: run.state["status"] in ("complete", "failed"))
    assert run.state["status"] == "complete", logs(run)
    cluster.wait_for(jobs(run)[-1], "COMPLETED")


def wait_until_requeued(run, cluster, job):
    cluster.wait_for(job, "PENDING")
    assert run.state["status"] == "preempted", logs(run)


def ranks_of(run):
    """Returns the processes of a job's ranks by rank: neither srun nor the job's script."""
    environments = {
        process: environment_of(process) for process in processes_with(f"rampcli.worker {run.path}")
    }
    return {
        int(variables["SLURM_PROCID"]): process
        for process, variables in environments.items()
        if "SLURM_STEP_ID" in variables
    }


def test_a_chain_over_nodes_and_phases_trains_as_one_process_does(run, cluster, tmp_path_factory):
    words = [
        "model.num_query_groups=2",
        "model.rampup_batch_size=[2,2,16]",
        "model.global_batch_size=4",
        "trainer.max_samples=48",
        "phases.short.until=samples:36",
        "phases.short.data.sequence_length=8",
        "phases.long.until=null",
    ]
    alone = Run(tmp_path_factory.mktemp("alone") / "run")
    done = alone.pretrain(
        "rampup.at_boundary=continue", "rampup.node_policy=fixed", *words, "trainer.num_nodes=1"
    )
    assert done.returncode == 0, done.stderr
    words += ["trainer.num_nodes=2", "phases.long.parallel.tensor_parallel_size=2"]
    submit(run, *words)
    waiting = run.pretrain("launch=slurm", *words)
    assert waiting.returncode == 2
    assert "in the queue" in waiting.stderr or "in use" in waiting.stderr
    wait_until_complete(run, cluster)
    assert [cluster.job(job)["NumNodes"] for job in jobs(run)] == ["1", "2", "2"]
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2, 2: 2}
    boundaries = [event for event in run.events if event["event"] == "boundary"]
    for boundary in boundaries:
        assert boundary["lost_s"] == pytest.approx(sum(boundary[part] for part in PARTS), abs=0.01)
    assert len(boundaries) == 2
    assert_same_training(run, alone)
    status = rampcli("status", run)
    assert " complete " in status
    assert status.count("COMPLETED") == 3
    again = run.pretrain("launch=slurm", *words)
    assert (again.returncode, "already complete" in again.stdout) == (0, True)


PARTS = ("save_s", "exit_s", "wait_s", "start_s", "import_s", "load_s", "first_step_s")


def test_a_job_resumes_in_its_phase_after_preemption_and_its_time_limit_until_a_rank_is_killed(
    run, cluster
):
    submit(
        run,
        *ENDLESS,
        *PHASES,
        "data.micro_batch_size=2",
        "model.rampup_batch_size=[4,2,400_000]",
        "model.global_batch_size=6",
        "trainer.num_nodes=3",
        "launch.slurm.time=600",
        f"launch.grace_s={GRACE_S}",
    )
    first, job, later = jobs(run)
    cluster.wait_for(first, "COMPLETED")
    wait_for_rows(run, 7)

    cluster.preempt()
    wait_until_requeued(run, cluster, job)
    cluster.release(job)
    wait_for_rows(run, 7)

    reach_the_time_limit(run, cluster, job)
    wait_until_requeued(run, cluster, job)
    cluster.set_time_limit(job, minutes=600)
    cluster.release(job)
    wait_for_rows(run, 7)
    assert cluster.job(job)["Restarts"] == "2"
    stops = [event["status"] for event in run.events if event["event"] == "stop"]
    assert stops == ["stage_boundary", "preempted", "preempted"], logs(run)

    os.kill(ranks_of(run)[1], signal.SIGKILL)
    cluster.wait_for(job, "FAILED")
    # And not the error of rank 0, which misses it.
    assert "rank 1 was killed by SIGKILL; log: " in run.state["error"]["message"]
    cluster.wait_for(later, "CANCELLED")
    assert [row["world_size"] for row in run.rows[:4]] == [1, 1, 2, 2]
    assert_equals_undisturbed(run, 2, *PHASES)


def reach_the_time_limit(run, cluster, job):
    """Waits until Slurm has asked a job to save before its time limit.

    Slurm takes up to half a minute to ask. The ranks are stopped until then: they would train all
    the time, and the run would become long.
    """
    ranks = ranks_of(run).values()
    with paused(ranks):
        cluster.end_soon(job, within_s=GRACE_S + SIGNAL_MARGIN_S)
        wait_for(run, lambda: all(is_pending(signal.SIGUSR1, rank) for rank in ranks))


def test_a_cancelled_chain_saves_and_another_one_resumes(run, cluster):
    words = [*ENDLESS, *FIXED, "trainer.num_nodes=1"]
    submit(run, *words)
    (first,) = jobs(run)
    wait_for_rows(run, 7)
    assert first in rampcli("cancel", run)
    cluster.wait_for(first, "COMPLETED")
    assert run.state["status"] == "preempted"
    saved = complete_checkpoints(run.directory)[-1].step
    assert saved == run.rows[-1]["step"]
    assert "not training; resume with:" in rampcli("status", run)
    submit(run, *words)
    (second,) = jobs(run)
    wait_for_rows(run, 7)
    cluster.run("scancel", second)
    cluster.wait_for(second, "CANCELLED")
    wait_for(run, lambda: run.state["status"] == "preempted")
    submit(run, *words, f"trainer.max_samples={run.state['consumed_samples'] + 4 * 7}")
    wait_until_complete(run, cluster)
    stops = [event["status"] for event in run.events if event["event"] == "stop"]
    assert stops == ["preempted", "preempted", "complete"], logs(run)
    assert_equals_undisturbed(run, 1)


def test_a_failed_job_shows_its_error_and_executes_neither_the_name_nor_files_of_its_folder(
    cluster, planned, tmp_path, monkeypatch
):
    plant_modules(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = Run(tmp_path / "runs" / "x; touch ran.name #")
    corpus = tmp_path / "text.txt"
    corpus.write_text("words of a text " * 200)
    words = [
        f"name='{run.path.name}'",
        "run_dir=null",
        "data=text",
        f"data.path={corpus}",
        "model.vocab_size=260",
        "model.rampup_batch_size=null",
        "model.global_batch_size=2",
        "trainer.max_samples=10",
        "trainer.num_nodes=1",
        "trainer.val_samples=0",
    ]
    words += ["launch=slurm", 'launch.slurm.environment=["PYTHONPATH=:"]']
    # Only the script can set PYTHONSAFEPATH.
    words += ['launch.slurm.sbatch_args=["--export=SLURM_CONF,PATH,OMP_NUM_THREADS"]']
    blocker = cluster.occupy()
    pretrain(planned("llama3_tiny", *run.overrides(words)))
    corpus.unlink()
    cluster.run("scancel", blocker)
    (job,) = jobs(run)
    assert cluster.wait_for(job, "FAILED")["ExitCode"] == "2:0"
    error = f"error: cannot read {corpus}: No such file or directory"
    assert error in (run.directory.logs / "stage_0.log").read_text()  # the worker's
    assert [path for path in tmp_path.rglob("ran.*") if path != run.path] == []
    monkeypatch.chdir("/")
    told = rampcli("status", run)
    assert f"\nstep 0, 0 samples; nothing saved\n{error}" in told
    assert json.loads(rampcli("status", run, "--json"))["jobs"][0]["state"] == "FAILED"


@pytest.mark.parametrize(
    "starter",
    [
        ["srun", "--nodes=2", "--ntasks-per-node=1"],
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    ],
    ids=["srun", "mpirun"],
)
@pytest.mark.usefixtures("cluster")
def test_ranks_that_are_started_by_hand_find_each_other(starter):
    done = subprocess.run(
        [*starter, sys.executable, "-c", JOIN],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # mpirun may print the end of one rank's line after another rank's line.
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"]
