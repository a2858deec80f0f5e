"""The checks of a machine with GPUs, and a job of a cluster on its GPUs."""

import json
import re

from commands import run_command
from gpu_rehearsal.gpu_runs import CLOSE, GPUS, assert_same_numbers, gpu_environment
from tiny_runs import Run


def test_the_doctor_finds_the_gpus_and_lets_two_of_them_exchange_numbers():
    words = ["doctor", "--json", "-f", "llama3_tiny", "trainer.accelerator=gpu"]
    done = run_command(words, gpu_environment())
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["gpus"]["status"] == "ok", checks
    assert re.fullmatch(
        rf"{GPUS} x NVIDIA H100 .*; the largest stage uses 2", checks["gpus"]["finding"]
    )
    assert checks["nccl"]["status"] == "ok"
    assert checks["nccl"]["finding"] == "all-reduce over 2 GPUs works"


def test_a_job_of_two_nodes_trains_on_their_gpus_as_the_cpu_does(cluster, tmp_path):
    words = [
        "model.rampup_batch_size=null",
        "model.global_batch_size=4",
        "trainer.num_nodes=2",
        "trainer.max_samples=16",
    ]
    run, alone = Run(tmp_path / "run"), Run(tmp_path / "alone")
    command = run.command("launch=slurm", *words, "trainer.accelerator=gpu")[3:]
    submitted = run_command(command, gpu_environment())
    assert submitted.returncode == 0, submitted.stderr
    (job,) = json.loads((run.path / "slurm/jobs.json").read_text())["jobs"]
    cluster.wait_for(job["job"], "COMPLETED", "FAILED", "CANCELLED")
    log = "\n".join(path.read_text() for path in run.directory.logs.iterdir())
    assert run.state["status"] == "complete", log
    assert {row["world_size"] for row in run.rows} == {2}
    alone.workers(2, *words)
    assert_same_numbers(run, alone, within=CLOSE["fp32"])
