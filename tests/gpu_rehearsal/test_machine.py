"""The checks of a machine with GPUs, and a job of a cluster on its GPUs."""

import json
import os
import re
import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from commands import run_command
from gpu_rehearsal.gpu_runs import (
    CLOSE,
    GPUS,
    assert_same_numbers,
    gpu_environment,
    run_on_its_gpu,
)
from processes import PATIENCE_S
from rampcli.errors import UsageError
from rampcli.machine import host
from rampcli.parallel import ranks
from rampcli.settings.trainer import Accelerator, TrainerConfig
from rampcli.worker.join import join_ranks
from ranks import run_ranks, stop_ranks
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


def refusal_of_join(accelerators: list[Accelerator], local_ranks: list[str]) -> str | None:
    """Joins as this rank, and returns the message if the ranks are refused.

    Args:
        accelerators, local_ranks: of each rank.
    """
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_RANK"] = local_ranks[rank]
    try:
        join_ranks(TrainerConfig(accelerator=accelerators[rank]), timeout_s=PATIENCE_S)
    except UsageError as error:
        return error.message
    dist.destroy_process_group()
    return None


@pytest.mark.parametrize(
    ("accelerators", "local_ranks", "message"),
    [
        (["gpu", "gpu"], ["0", "1"], None),
        (["gpu", "gpu"], ["1", "1"], r"ranks 0 and 1 on HOST have the same GPU \(\S+\)"),
        (
            ["gpu", "cpu"],
            ["0", "1"],
            "torch sees no GPU for rank 1 on HOST, and the others have GPUs",
        ),
    ],
    ids=["a GPU each", "a shared GPU", "a rank without a GPU"],
)
def test_every_rank_says_which_ranks_lack_a_gpu_of_their_own(
    accelerators, local_ranks, message, tmp_path
):
    try:
        found = run_ranks(2, refusal_of_join, accelerators, local_ranks, logs=tmp_path)
    finally:
        stop_ranks()
    if message is None:
        assert found == [None, None]
    else:
        pattern = message.replace("HOST", re.escape(socket.gethostname()))
        assert all(re.fullmatch(pattern, each) for each in found), found


def affinities_after_training(run_dir: str, system: str, fewest: int) -> list[set[int]]:
    """Trains, and returns the processors that each thread of this process may use.

    Args:
        system: folder that stands for /sys.
        fewest: processors of a node to which a rank is bound.
    """
    host.SYSTEM, ranks.FEWEST_PROCESSORS = Path(system), fewest
    run_on_its_gpu("rampcli.worker", run_dir)
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]


@pytest.mark.parametrize(
    ("numa_binding", "fewest", "is_bound"),
    [(True, 1, True), (True, 10_000, False), (False, 1, False)],
)
def test_a_rank_runs_on_the_processors_next_to_its_gpu(tmp_path, numa_binding, fewest, is_bound):
    here = os.sched_getaffinity(0)
    nodes = [sorted(here)[node::2] for node in range(2)]  # the first has no less than the second
    for node, numbers in enumerate(nodes):
        gpu = tmp_path / f"sys/bus/pci/devices/ffff:{node:02x}:00.0"
        memory = tmp_path / f"sys/devices/system/node/node{node}"
        for folder, file, text in (
            (gpu, "numa_node", str(node)),
            (memory, "cpulist", ",".join(map(str, numbers))),
        ):
            folder.mkdir(parents=True)
            (folder / file).write_text(text)
    run = Run(tmp_path / "run")
    words = [f"trainer.numa_binding={numa_binding}", "trainer.devices=2", "trainer.max_samples=8"]
    run.describe("trainer.accelerator=gpu", "model.rampup_batch_size=null", *words)
    try:
        found = run_ranks(
            2,
            affinities_after_training,
            *(str(run.path), str(tmp_path / "sys"), fewest),
            logs=run.directory.logs,
        )
    finally:
        stop_ranks()
    for near, affinities in zip(nodes, found, strict=True):
        expected = set(near) if is_bound and near else here
        assert all(one == expected for one in affinities)
    (load,) = [row for row in run.events if row["event"] == "load"]
    assert load["processors"] == len(nodes[0] if is_bound else here)
