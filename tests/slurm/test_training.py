"""Runs that train as chains of real jobs, on nodes that are lost and return."""

import json
import os
import signal
import subprocess
import sys

import pytest

from planted import plant_modules
from processes import environment_of, processes_with, wait_until
from rampcli import llm
from rampcli.checkpoint.manifest import complete_checkpoints
from rampcli.config.compose import apply_overrides
from rampcli.config.resolve import resolve
from rampcli.launch.run import run as pretrain
from runs import Run, assert_every_sample_is_read_once, assert_same_training, environment

pytestmark = pytest.mark.xdist_group("slurm")

# Hundreds of steps, so that there is time to disturb the run.
LONG = [
    "trainer.num_nodes=2",
    "rampup.node_policy=fixed",
    "data.micro_batch_size=1",
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "trainer.max_samples=1600",
    "trainer.val_every_steps=100",
]


@pytest.fixture
def run(tmp_path, cluster):  # noqa: ARG001
    """A run whose jobs are submitted to the cluster."""
    return Run(tmp_path / "run")


@pytest.fixture(scope="module")
def long_undisturbed(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("undisturbed") / "run")
    run.workers(2, *LONG)
    return run


def assert_as_if_nothing_had_happened(run, undisturbed):
    assert_every_sample_is_read_once(run)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]
    assert run.validations() == undisturbed.validations()


def rampcli(command, run, *options):
    done = subprocess.run(
        [sys.executable, "-m", "rampcli", command, run.path, *options],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
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
    wait_until(what, said=lambda: logs(run))


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


def test_a_chain_on_more_and_more_nodes_trains_as_one_process_does(run, cluster, tmp_path_factory):
    words = [
        "model.rampup_batch_size=[2,2,16]",
        "model.global_batch_size=6",
        "trainer.num_nodes=3",
        "trainer.max_samples=34",
    ]
    submit(run, *words)
    waiting = run.pretrain("launch=slurm", *words)
    assert waiting.returncode == 2
    assert "in the queue" in waiting.stderr or "in use" in waiting.stderr
    wait_until_complete(run, cluster)
    assert [cluster.job(job)["NumNodes"] for job in jobs(run)] == ["1", "2", "3"]
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2, 2: 3}
    boundaries = [event for event in run.events if event["event"] == "boundary"]
    assert len(boundaries) == 2
    for event in boundaries:
        assert event["lost_s"] == pytest.approx(sum(event[part] for part in PARTS), abs=0.01)
    alone = Run(tmp_path_factory.mktemp("alone") / "run")
    alone.workers(
        1, "rampup.at_boundary=continue", "rampup.node_policy=fixed", *words, "trainer.num_nodes=1"
    )
    assert_same_training(run, alone)
    status = rampcli("status", run)
    assert status.startswith("complete: step ")
    assert status.count("COMPLETED") == 3
    again = run.pretrain("launch=slurm", *words)
    assert (again.returncode, "already complete" in again.stdout) == (0, True)


PARTS = ("save_s", "exit_s", "wait_s", "start_s", "import_s", "load_s", "first_step_s")


def test_a_job_that_loses_a_node_and_is_preempted_saves_and_resumes_elsewhere(
    run, cluster, long_undisturbed
):
    submit(run, *LONG)
    (job,) = jobs(run)
    wait_for_rows(run, 20)
    cluster.set_down("node2")
    wait_for(run, lambda: cluster.job(job)["JobState"] == "PENDING")
    cluster.release(job)
    wait_for_rows(run, 20)
    assert "node2" not in cluster.job(job)["NodeList"]
    cluster.resume("node2")
    cluster.preempt()
    wait_for(run, lambda: cluster.job(job)["Restarts"] == "2")
    wait_until_complete(run, cluster)
    stops = [event["status"] for event in run.events if event["event"] == "stop"]
    assert stops == ["preempted", "preempted", "complete"], logs(run)
    assert_as_if_nothing_had_happened(run, long_undisturbed)


def test_a_rank_that_is_killed_is_named_and_not_the_error_of_those_that_miss_it(run, cluster):  # noqa: ARG001
    submit(
        run,
        *LONG,
        "trainer.max_samples=1_000_000",
        "schedule.decay_style=constant",
        "launch.max_restarts=0",
    )
    wait_for_rows(run, 10)
    workers = processes_with(f"rampcli.worker {run.path}")
    (second,) = [worker for worker in workers if environment_of(worker).get("SLURM_PROCID") == "1"]
    os.kill(second, signal.SIGKILL)
    wait_for(
        run,
        lambda: (
            "rank 1 was killed by SIGKILL; log: "
            in (run.state.get("error") or {"message": ""})["message"]
        ),
    )


def test_a_job_that_reaches_its_time_limit_saves_and_requeues_itself(run, cluster):
    words = [*LONG, "schedule.decay_style=constant"]
    limit = ["launch.slurm.time=600", "launch.grace_s=20"]
    submit(run, *words, *limit, "trainer.max_samples=1_000_000")
    (job,) = jobs(run)
    wait_for_rows(run, 20)
    cluster.end_soon(job, within_s=120)  # a job is asked to save 80 s before its end
    wait_for(run, lambda: "stop" in kinds_of_events(run))
    wait_for(run, lambda: cluster.job(job)["Restarts"] == "1")
    cluster.set_time_limit(job, minutes=600)
    wait_for(run, lambda: kinds_of_events(run).count("start") == 2)
    wait_for_rows(run, 20)
    rampcli("cancel", run)
    cluster.wait_for(job, "COMPLETED")
    assert {row["status"] for row in run.events if row["event"] == "stop"} == {"preempted"}
    undisturbed = Run(run.path.with_name("undisturbed"))
    undisturbed.workers(2, *words, f"trainer.max_samples={run.state['consumed_samples']}")
    assert_every_sample_is_read_once(run)
    assert [row["loss"] for row in run.rows] == [row["loss"] for row in undisturbed.rows]


def kinds_of_events(run):
    return [row["event"] for row in run.events]


def test_a_cancelled_chain_saves_and_another_one_resumes(run, cluster, long_undisturbed):
    submit(run, *LONG)
    (first,) = jobs(run)
    wait_for_rows(run, 20)
    assert first in rampcli("cancel", run)
    cluster.wait_for(first, "COMPLETED")
    assert run.state["status"] == "preempted"
    saved = complete_checkpoints(run.directory)[-1].step
    assert saved == run.rows[-1]["step"]
    assert "not training; resume with:" in rampcli("status", run)
    submit(run, *LONG)
    (second,) = jobs(run)
    wait_for_rows(run, 20)
    cluster.run("scancel", second)
    cluster.wait_for(second, "CANCELLED")
    wait_for(run, lambda: run.state["status"] == "preempted")
    submit(run, *LONG)
    wait_until_complete(run, cluster)
    assert_as_if_nothing_had_happened(run, long_undisturbed)


def test_a_chain_ends_with_a_job_that_fails_and_status_shows_the_error(run, cluster, tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("words of a text " * 200)
    template = tmp_path / "own.j2"  # its jobs delete the text before they train
    template.write_text(
        "#!/bin/bash\n#SBATCH --nodes={{ num_nodes }}\n#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --output={{{{ log | directive }}}}\nrm -f {corpus}\n"
        "exec {{ python }} -m rampcli.launch.slurm.job {{ run_dir }} {{ stages }}\n"
    )
    words = [
        "data=text",
        f"data.path={corpus}",
        "model.vocab_size=260",
        "trainer.val_samples=0",
        f"launch.slurm.template={template}",
    ]
    submit(run, *words, "trainer.num_nodes=2", "trainer.max_samples=40")
    first, *others = jobs(run)
    assert cluster.wait_for(first, "FAILED")["ExitCode"] == "2:0"
    for job in others:
        cluster.wait_for(job, "CANCELLED")
    told = rampcli("status", run)
    assert told.startswith("failed: step 0, 0 samples, stage 0; nothing saved\nerror: cannot read ")
    assert json.loads(rampcli("status", run, "--json"))["jobs"][0]["state"] == "FAILED"


def test_a_job_executes_neither_its_run_s_name_nor_files_in_the_working_directory(
    cluster, tmp_path, monkeypatch
):
    plant_modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = Run(tmp_path / "runs" / "x; touch ran.name #")
    words = [
        f"name='{run.path.name}'",
        "run_dir=null",
        "trainer.max_samples=10",
        "trainer.num_nodes=1",
        "trainer.val_samples=0",
    ]
    words += [
        'launch.slurm.sbatch_args=["--export=SLURM_CONF,PATH,OMP_NUM_THREADS"]'
    ]  # so only the script can set PYTHONSAFEPATH
    pretrain(
        resolve(
            apply_overrides(
                llm.from_factory("llama3_tiny"),
                run.overrides(
                    ["launch=slurm", 'launch.slurm.environment=["PYTHONPATH=:"]', *words]
                ),
            )
        )
    )
    wait_until_complete(run, cluster)
    assert_every_sample_is_read_once(run)
    assert [path for path in tmp_path.rglob("ran.*") if path != run.path] == []


@pytest.mark.parametrize(
    "starter",
    [
        ["srun", "--nodes=2", "--ntasks-per-node=1"],
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    ],
    ids=["srun", "mpirun"],
)
def test_workers_that_are_started_by_hand_find_their_ranks(starter, run, long_undisturbed):
    words = [*LONG, "trainer.max_samples=40", "schedule.decay_style=constant"]
    run.path.mkdir()
    run.directory.config.write_text(run.pretrain("--cfg", *words).stdout)
    done = subprocess.run(
        [*starter, sys.executable, "-m", "rampcli.worker", run.path],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {row["world_size"] for row in run.rows} == {2}
    assert [row["order_hash"] for row in run.rows] == [
        row["order_hash"] for row in long_undisturbed.rows[:10]
    ]
    assert_every_sample_is_read_once(run)
