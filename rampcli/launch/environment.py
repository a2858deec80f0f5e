"""Environment variables that decide whether workers can start."""

import os
import socket
from collections.abc import Mapping

from rampcli.errors import UsageError

OUTER_PREFIXES = ("TORCHELASTIC_", "PET_")
OUTER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
)
"""Variables of another launcher of ranks. Workers would take another run's places from them."""
OTHER_STARTERS = {
    "torchrun": "TORCHELASTIC_RUN_ID",
    "mpirun": "OMPI_COMM_WORLD_SIZE",
    "srun": "SLURM_STEP_NUM_TASKS",
}
"""Programs that start a command several times, and a variable that each of them sets."""
INTERFACES = "GLOO_SOCKET_IFNAME"


def without_outer_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables that another launcher of ranks has set."""
    return {
        name: value
        for name, value in environment.items()
        if name not in OUTER_VARIABLES and not name.startswith(OUTER_PREFIXES)
    }


def check_outer_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Checks that no other program starts this command once per rank.

    Raises:
        UsageError: one does; the remedy is the program that such a launcher starts.
    """
    for program, variable in OTHER_STARTERS.items():
        value = environment.get(variable)
        is_rank = "LOCAL_RANK" in environment if program == "torchrun" else value not in ("1", None)
        if value is not None and is_rank:
            raise UsageError(
                f"{program} has started this command ({variable}={value}), but rampcli starts the"
                " processes of a run itself",
                remedy=(
                    f"the same command without {program}",
                    f"{program} ... python -P -m rampcli.worker RUN_DIR, which is one rank",
                ),
            )


def check_interfaces(environment: Mapping[str, str] = os.environ) -> None:
    """Checks that the network interfaces that gloo is told to use exist.

    Raises:
        UsageError: one does not.
    """
    wanted = environment.get(INTERFACES, "")
    known = [name for _, name in socket.if_nameindex()]
    if missing := [name for name in wanted.split(",") if name and name not in known]:
        raise UsageError(
            f"{INTERFACES}={wanted} in the environment names {', '.join(missing)}, which is no"
            " network interface of this machine",
            remedy=(f"unset {INTERFACES}", f"{INTERFACES}={' or '.join(known)}"),
        )
