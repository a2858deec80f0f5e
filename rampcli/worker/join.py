"""Which rank a worker is, as whoever started it says: torchrun, mpirun, srun, or nobody; where it computes; how all of them join."""

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rampcli.config.choices import Accelerator
from rampcli.errors import RampcliError
from rampcli.lifeline import LISTENER
from rampcli.network import LOOPBACK, address_towards, interface_of, is_loopback
from rampcli.parallel.ranks import device_here

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PORTS = 10_000
FIRST_PORT = 20_000
SCONTROL_S = 60
PATIENCE = timedelta(minutes=30)
"""How long ranks wait for each other when they join."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Who starts processes, and the variables in which it tells each its place."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str


# In this order: one starter may run inside of another's processes, which then see the variables of both.
STARTERS = (
    Starter("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Starter(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Starter("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Starter(
        "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"
    ),
)


def join_ranks(accelerator: Accelerator) -> torch.device:
    """Form the process group; alone, a group of one. Returns this rank's device.

    Its sockets listen on one network interface: on loopback if all ranks are on this host.

    Raises:
        RampcliError: as `rank_variables` and `device_here`; or rank 0 cannot listen where the others expect it.
    """
    others_are_here = _others_are_here(os.environ)
    place = rank_variables(os.environ)
    os.environ.update(place)
    device = device_here(accelerator)
    # Where torchrun hosts the store, torch finds it by itself.
    store = (
        None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        else _meet(place, others_are_here=others_are_here)
    )
    interface = interface_of(address_towards(LOOPBACK if others_are_here else place["MASTER_ADDR"]))
    if interface is not None:  # in the environment, because groups that are formed later listen too
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=int(place["RANK"]),
        world_size=int(place["WORLD_SIZE"]),
        device_id=None if device.type == "cpu" else device,
    )
    return device


def _meet(place: Mapping[str, str], *, others_are_here: bool | None) -> "Store":
    """Returns the store through which ranks find each other. Rank 0 hosts it on MASTER_ADDR; torch would do so on every interface."""
    host, port = place["MASTER_ADDR"], int(place["MASTER_PORT"])
    listener = (
        _listen(host, port, others_are_here=others_are_here) if place["RANK"] == "0" else None
    )
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port if listener is None else listener.getsockname()[1],
        int(place["WORLD_SIZE"]),
        is_master=listener is not None,
        timeout=PATIENCE,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listen(host: str, port: int, *, others_are_here: bool | None) -> socket.socket:
    if LISTENER in os.environ:
        return socket.socket(fileno=int(os.environ[LISTENER]))
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if (
            others_are_here is False and is_loopback(str(address[0])) and address[0] != host
        ):  # as Debian writes /etc/hosts
            raise OSError(f"to this host it means {address[0]}, which other hosts do not reach")
        return socket.create_server(address, family=family)
    except OSError as error:
        raise RampcliError(
            f"rank 0 cannot listen on MASTER_ADDR={host}, port {port}: {error}",
            remedy="MASTER_ADDR=ADDRESS, one of the addresses of rank 0's host, and a port that is free there",
        ) from error


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What torch.distributed wants to find in the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Raises:
        RampcliError: the ranks are on several hosts, and nobody says where the first one is.
    """
    found = _starter(environment)
    if found is None:
        place = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }
    else:
        place = {
            "RANK": environment[found.rank],
            "WORLD_SIZE": environment[found.world_size],
            "LOCAL_RANK": environment.get(found.local_rank, "0"),
        }
        if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            place |= (
                _first_of_step(environment)
                if found.name == "srun"
                else _this_host(found, environment)
            )
    return place | {
        name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment
    }


def _starter(environment: Mapping[str, str]) -> Starter | None:
    return next(
        (
            starter
            for starter in STARTERS
            if {starter.rank, starter.world_size} <= environment.keys()
        ),
        None,
    )


def _others_are_here(environment: Mapping[str, str]) -> bool | None:
    """Whether all ranks are on this host; None if whoever started them does not say."""
    found = _starter(environment)
    if found is None:
        return True
    return (
        environment[found.local_size] == environment[found.world_size]
        if found.local_size in environment
        else None
    )


def _this_host(starter: Starter, environment: Mapping[str, str]) -> dict[str, str]:
    """All ranks are children of one process here, which gives them a port."""
    if not _others_are_here(environment):
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
    return {
        "MASTER_ADDR": first if address is None else address[1],
        "MASTER_PORT": str(FIRST_PORT + number % PORTS),
    }


def _ask_slurm(*words: str) -> str:
    try:
        return subprocess.run(
            ["scontrol", "show", *words],
            text=True,
            capture_output=True,
            check=True,
            timeout=SCONTROL_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RampcliError(
            f"scontrol does not say where the first rank is: {error}",
            remedy="export MASTER_ADDR and MASTER_PORT in the job's script",
        ) from error
