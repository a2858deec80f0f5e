"""Finds this rank in the variables that the program that started it has set. Needs no torch."""

import os
from collections.abc import Mapping
from functools import partial

from rampcli.errors import RampcliError
from rampcli.machine.network import LOOPBACK
from rampcli.plugins.launchers import Starter, declarations

PORTS = 10_000
FIRST_PORT = 20_000
# The innermost starter comes first: workers of torchrun also see the variables of the starter that
# started torchrun.
STARTERS = (
    Starter(
        name="torchrun",
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_size="LOCAL_WORLD_SIZE",
    ),
    Starter(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Starter(
        name="MPICH",
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
    ),
    *(one.starter for one in declarations().values() if one.starter is not None),
)


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for torch.distributed.

    Raises:
        RampcliError: the ranks are on several hosts, and the address of the first is unknown.
    """
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": "0",
    }
    if (starter := _starter(environment)) is not None:
        variables["RANK"] = environment[starter.rank]
        variables["WORLD_SIZE"] = environment[starter.world_size]
        variables["LOCAL_RANK"] = environment.get(starter.local_rank, "0")
        if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            address, number = (starter.address or partial(_this_host, starter))(environment)
            variables |= {"MASTER_ADDR": address, "MASTER_PORT": str(FIRST_PORT + number % PORTS)}
    given = ("MASTER_ADDR", "MASTER_PORT")
    return variables | {name: environment[name] for name in given if name in environment}


def rank_of(environment: Mapping[str, str]) -> str:
    """Returns the number of this rank."""
    starter = _starter(environment)
    return "0" if starter is None else environment[starter.rank]


def world_size_of(environment: Mapping[str, str]) -> str:
    """Returns the number of ranks."""
    starter = _starter(environment)
    return "1" if starter is None else environment[starter.world_size]


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


def _this_host(starter: Starter, environment: Mapping[str, str]) -> tuple[str, int]:
    """Returns loopback and the ID of the parent process, which all ranks on one host share."""
    if not are_on_one_host(environment):
        raise RampcliError(
            "MASTER_ADDR and MASTER_PORT, the address of rank 0, are not set, and"
            f" {starter.name} may have started ranks on several hosts",
            remedy="mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..., or -genv for MPICH",
        )
    return LOOPBACK, os.getppid()
