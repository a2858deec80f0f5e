"""Which rank a worker is, as whoever started it says: torchrun, mpirun, srun, or nobody; where it computes; how all of them join."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from rampcli.config.choices import Accelerator
from rampcli.errors import RampcliError, UsageError

PORTS = 10_000
FIRST_PORT = 20_000
SCONTROL_S = 60
MOST_SAID_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Starter:
    """Who starts processes, and the variables in which it tells each its place."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str | None = None


# In this order: one starter may run inside of another's processes, which then see the variables of both.
STARTERS = (
    Starter("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Starter("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    Starter("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Starter("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def join_ranks(accelerator: Accelerator) -> torch.device:
    """Form the process group; alone, a group of one. Returns this rank's device.

    Raises:
        RampcliError: as `rank_variables` and `device_here`.
    """
    os.environ.update(rank_variables(os.environ))
    device = device_here(accelerator)
    if device.type == "cpu":
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    return device


def device_here(accelerator: Accelerator) -> torch.device:
    """Where this process computes; on a host with several GPUs, that of its local rank.

    Raises:
        UsageError: a GPU is wanted and there is none.
    """
    if accelerator is not Accelerator.cpu and torch.cuda.is_available():
        # srun may have shown each process its own GPU alone, which is the first that it sees then.
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if accelerator is Accelerator.gpu:
        raise UsageError("trainer.accelerator=gpu, but torch sees no GPU here", keys=("trainer.accelerator",))
    return torch.device("cpu")


def from_rank_0(number: int) -> int:
    """What rank 0 says; every rank asks."""
    shared = torch.tensor(int(number), device=_device_of(None))
    dist.broadcast(shared, src=0)
    return int(shared.item())


def from_all_ranks(words: dict[str, Any], group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """What each rank of a group says, in words that JSON knows and that take up to `MOST_SAID_BYTES` of it; every rank asks."""
    mine = torch.tensor(list(json.dumps(words).encode().ljust(MOST_SAID_BYTES)), dtype=torch.uint8, device=_device_of(group))
    said = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(said, mine, group=group)
    return [json.loads(bytes(each.tolist())) for each in said]


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the tensors are that a group exchanges."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What torch.distributed wants to find in the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Raises:
        RampcliError: the ranks are on several hosts, and nobody says where the first one is.
    """
    found = next((starter for starter in STARTERS if {starter.rank, starter.world_size} <= environment.keys()), None)
    if found is None:
        place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    else:
        place = {
            "RANK": environment[found.rank],
            "WORLD_SIZE": environment[found.world_size],
            "LOCAL_RANK": environment.get(found.local_rank, "0"),
        }
        if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            place |= _first_of_step(environment) if found.name == "srun" else _this_host(found, environment)
    return place | {name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment}


def _this_host(starter: Starter, environment: Mapping[str, str]) -> dict[str, str]:
    """All ranks are children of one process here, which gives them a port."""
    if starter.local_size is None or environment.get(starter.local_size) != environment[starter.world_size]:
        raise RampcliError(
            f"{starter.name} has started ranks on several hosts, and MASTER_ADDR and MASTER_PORT do not say where the first one is",
            remedy="mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..., or -genv for MPICH",
        )
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(FIRST_PORT + os.getppid() % PORTS)}


def _first_of_step(environment: Mapping[str, str]) -> dict[str, str]:
    """The address of the step's first node, and a port that other steps are not likely to have."""
    (first, *_) = _ask_slurm("hostnames", environment["SLURM_STEP_NODELIST"]).splitlines()
    address = re.search(r"NodeAddr=(\S+)", _ask_slurm("node", first))
    number = 31 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return {"MASTER_ADDR": first if address is None else address[1], "MASTER_PORT": str(FIRST_PORT + number % PORTS)}


def _ask_slurm(*words: str) -> str:
    try:
        return subprocess.run(["scontrol", "show", *words], text=True, capture_output=True, check=True, timeout=SCONTROL_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RampcliError(
            f"scontrol does not say where the first rank is: {error}", remedy="export MASTER_ADDR and MASTER_PORT in the job's script"
        ) from error
