"""Joins the ranks of a run: finds this rank in the environment and forms the process group."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rampcli.config.schema.trainer import Accelerator
from rampcli.errors import RampcliError
from rampcli.lifeline import LISTENER
from rampcli.network import LOOPBACK, address_towards, interface_of, is_loopback
from rampcli.parallel.ranks import device_here

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PORTS = 10_000
FIRST_PORT = 20_000
JOIN_TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for each other when they join."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A program that starts processes, and the variables in which it tells each its rank."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_size: str


# The innermost starter comes first: torchrun's workers under srun still see srun's variables.
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
    """Forms the process group and returns this rank's device.

    Without a starter, this process is the only rank.

    The group's sockets listen on one network interface: loopback if all ranks are on this host.

    Raises:
        RampcliError: as `rank_variables` and `device_here`; or rank 0 cannot listen on its address.
    """
    is_one_host = are_on_one_host(os.environ)
    variables = rank_variables(os.environ)
    os.environ.update(variables)
    device = device_here(accelerator)
    # torch finds the store by itself if torchrun hosts it.
    store = (
        None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        else _open_store(variables, is_one_host=is_one_host)
    )
    choose_interface(is_one_host=is_one_host)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=int(variables["RANK"]),
        world_size=int(variables["WORLD_SIZE"]),
        device_id=None if device.type == "cpu" else device,
    )
    return device


def choose_interface(*, is_one_host: bool | None) -> None:
    """Sets the network interface of all groups that this process forms.

    Args:
        is_one_host: whether all ranks are on this host; None if it is unknown.
    """
    interface = interface_of(
        address_towards(LOOPBACK if is_one_host else os.environ["MASTER_ADDR"])
    )
    if interface is not None:  # in the environment, for groups that are formed later
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def _open_store(variables: Mapping[str, str], *, is_one_host: bool | None) -> "Store":
    """Returns the store through which ranks find each other.

    Rank 0 hosts it on MASTER_ADDR only. By default, torch would listen on every interface.
    """
    host, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    listener = _listen(host, port, is_one_host=is_one_host) if variables["RANK"] == "0" else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        port if listener is None else listener.getsockname()[1],
        int(variables["WORLD_SIZE"]),
        is_master=listener is not None,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=None if listener is None else listener.detach(),
    )


def _listen(host: str, port: int, *, is_one_host: bool | None) -> socket.socket:
    if LISTENER in os.environ:
        return socket.socket(fileno=int(os.environ[LISTENER]))
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Debian's /etc/hosts maps the host's own name to a loopback address.
        if is_one_host is False and is_loopback(str(address[0])) and address[0] != host:
            raise OSError(f"it resolves to {address[0]}, which other hosts do not reach")
        return socket.create_server(address, family=family)
    except OSError as error:
        raise RampcliError(
            f"rank 0 cannot listen on MASTER_ADDR={host}, port {port}: {error}",
            remedy="MASTER_ADDR=ADDRESS, an address of rank 0's host, and a free port there",
        ) from error


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for torch.distributed.

    Raises:
        RampcliError: the ranks are on several hosts, and the address of the first is unknown.
    """
    starter = _starter(environment)
    if starter is None:
        variables = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": "0",
        }
    else:
        variables = {
            "RANK": environment[starter.rank],
            "WORLD_SIZE": environment[starter.world_size],
            "LOCAL_RANK": environment.get(starter.local_rank, "0"),
        }
        if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            variables |= (
                _address_in_slurm_step(environment)
                if starter.name == "srun"
                else _address_on_this_host(starter, environment)
            )
    given = {
        name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment
    }
    return variables | given


def _starter(environment: Mapping[str, str]) -> Starter | None:
    return next(
        (
            starter
            for starter in STARTERS
            if {starter.rank, starter.world_size} <= environment.keys()
        ),
        None,
    )


def are_on_one_host(environment: Mapping[str, str]) -> bool | None:
    """Returns whether all ranks are on this host, or None if their starter does not say."""
    starter = _starter(environment)
    if starter is None:
        return True
    if starter.local_size not in environment:
        return None
    return environment[starter.local_size] == environment[starter.world_size]


def _address_on_this_host(starter: Starter, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns loopback and a port derived from the parent process, which all ranks here share.

    Raises:
        RampcliError: not all ranks are on this host.
    """
    if not are_on_one_host(environment):
        raise RampcliError(
            "MASTER_ADDR and MASTER_PORT, the address of rank 0, are not set, and"
            f" {starter.name} may have started ranks on several hosts",
            remedy="mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..., or -genv for MPICH",
        )
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(FIRST_PORT + os.getppid() % PORTS)}


def _address_in_slurm_step(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the address of the step's first node, and a port that few other steps share."""
    from rampcli.launch.slurm import commands  # here, because few workers are started so

    try:
        first = commands.nodes_named(environment["SLURM_STEP_NODELIST"])[0]
        address = commands.address_of(first)
    except RampcliError as error:
        raise RampcliError(
            f"the address of rank 0 is unknown: {error.message}",
            remedy="export MASTER_ADDR and MASTER_PORT in the job's script",
        ) from error
    number = 31 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return {"MASTER_ADDR": address, "MASTER_PORT": str(FIRST_PORT + number % PORTS)}
