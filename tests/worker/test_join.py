import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from rampcli.errors import RampcliError, UsageError
from rampcli.parallel.ranks import CPU, check_devices, device_here, gpu_of
from rampcli.settings.trainer import TrainerConfig
from rampcli.worker.join import agree_on_devices, join_ranks
from rampcli.worker.starters import rank_variables

ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
MASTER = {"MASTER_ADDR": "node7", "MASTER_PORT": "4711"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
BATCH_STEP = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "9"}
STEP = BATCH_STEP | {
    "SLURM_PROCID": "6",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_ID": "0",
}


def place(environment):
    found = rank_variables(environment)
    return int(found["RANK"]), int(found["WORLD_SIZE"]), int(found["LOCAL_RANK"])


def test_a_worker_without_a_launcher_has_world_size_one():
    assert rank_variables({"HOME": "/root"}) == ALONE


def test_a_worker_is_single_in_a_batch_script_and_one_of_many_in_a_slurm_step():
    assert place(BATCH_STEP) == (0, 1, 0)
    assert place(STEP | MASTER) == (6, 16, 2)


@pytest.mark.parametrize(
    ("inner", "expected"), [(TORCHRUN, (5, 8, 1)), (OPEN_MPI, (3, 4, 3)), (MPICH, (2, 4, 0))]
)
def test_the_innermost_launcher_decides_the_rank(inner, expected):
    assert place(STEP | inner | MASTER) == expected


def test_the_address_in_the_environment_is_used():
    for environment in ({}, TORCHRUN, OPEN_MPI, MPICH, STEP):
        found = rank_variables(environment | MASTER)
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("node7", "4711")


def test_children_of_the_same_mpirun_share_a_port():
    found = rank_variables(OPEN_MPI)
    assert (found["MASTER_ADDR"], int(found["MASTER_PORT"]) - 20_000) == (
        "127.0.0.1",
        os.getppid() % 10_000,
    )


def test_ranks_on_several_hosts_require_an_address():
    with pytest.raises(RampcliError, match="MPICH may have started ranks") as refused:
        rank_variables(MPICH)
    assert "MASTER_ADDR=HOST" in refused.value.remedy


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost", "which other hosts do not reach"),
        ("203.0.113.7", "Cannot assign requested address"),
    ],
)
def test_rank_0_refuses_an_address_that_other_hosts_cannot_reach(monkeypatch, address, why):
    monkeypatch.setattr(
        os,
        "environ",
        dict(os.environ) | MPICH | {"PMI_RANK": "0", "MASTER_ADDR": address, "MASTER_PORT": "0"},
    )
    with pytest.raises(RampcliError) as refused:
        join_ranks(TrainerConfig(accelerator="cpu"), timeout_s=60)
    assert f"rank 0 cannot listen on MASTER_ADDR={address}, port 0: " in refused.value.message
    assert why in refused.value.message


def refused(call, *arguments, **words):
    with pytest.raises(UsageError) as error:
        call(*arguments, **words)
    return error.value.message


def test_a_rank_that_needs_a_gpu_and_sees_none_names_its_host(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    host = socket.gethostname()
    with pytest.raises(UsageError) as error:
        device_here("gpu")
    assert error.value.message == f"trainer.accelerator=gpu, but torch sees no GPU on {host}"
    assert error.value.remedy == f"`rampcli doctor` on {host}, or trainer.accelerator=cpu"


def test_each_process_of_a_host_has_a_gpu_of_its_own():
    assert [gpu_of(rank, gpus=4) for rank in range(4)] == [0, 1, 2, 3]
    assert "local rank 4 has no GPU: torch sees 4" in refused(gpu_of, 4, gpus=4)


def test_processes_that_srun_shows_one_gpu_each_use_it():
    assert [gpu_of(rank, gpus=1) for rank in range(8)] == [0] * 8
    check_devices([("node1", "a"), ("node1", "b"), ("node2", "a")])


def test_ranks_that_share_a_gpu_are_refused():
    message = refused(check_devices, [("node1", "a"), ("node2", "a"), ("node2", "a")])
    assert "ranks 1 and 2 on node2 have the same GPU (a)" in message


def test_a_rank_without_a_gpu_among_ranks_with_gpus_is_refused_and_its_host_named():
    check_devices([("node1", CPU), ("node1", CPU)])
    message = refused(check_devices, [("node1", "a"), ("node7", CPU), ("node1", "b")])
    assert message == "torch sees no GPU for rank 1 on node7, and the others have GPUs"


@pytest.mark.parametrize(("devices", "is_refused"), [("AB", False), ("AAB", True)])
def test_all_ranks_learn_that_two_of_them_share_a_gpu(devices, is_refused):
    store, ranks = dist.TCPStore("127.0.0.1", 0, is_master=True), len(devices)

    def join(rank):
        own = dist.TCPStore("127.0.0.1", store.port, is_master=False)
        try:
            agree_on_devices(own, devices[rank], rank=rank, world_size=ranks)
        except UsageError as error:
            return error.message
        return None

    with ThreadPoolExecutor(ranks) as threads:
        messages = set(threads.map(join, range(ranks)))
    same = f"ranks 0 and 1 on {socket.gethostname()} have the same GPU (A)"
    assert messages == ({same} if is_refused else {None})
