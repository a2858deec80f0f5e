"""Environment variables that decide whether workers can start. A check raises a UsageError."""

import os
import socket
from collections.abc import Mapping, Sequence

from rampcli.errors import UsageError
from rampcli.machine.gpus import GPUS_VARIABLE as GPUS
from rampcli.machine.gpus import gpu_count, misread_gpus

OUTER_PREFIXES = ("TORCHELASTIC_", "PET_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")
OUTER_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
)
"""Variables of another launcher of ranks. Workers would take another run's places from them."""
OTHER_STARTERS = {
    "torchrun": "TORCHELASTIC_RUN_ID",
    "mpirun": "OMPI_COMM_WORLD_SIZE",
    "mpiexec": "PMI_SIZE",
    "srun": "SLURM_STEP_NUM_TASKS",
}
"""Programs that start a command several times, and a variable that each of them sets: Open MPI,
MPICH and Intel MPI, Slurm."""
GLOO_INTERFACES, NCCL_INTERFACES = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
THREADS_VARIABLE = "OMP_NUM_THREADS"


def without_outer_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables that another launcher of ranks has set."""
    return {
        name: value
        for name, value in environment.items()
        if name not in OUTER_VARIABLES and not name.startswith(OUTER_PREFIXES)
    }


def check_outer_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Checks that no other program starts this command once per rank."""
    for program, variable in OTHER_STARTERS.items():
        value = environment.get(variable)
        is_rank = "LOCAL_RANK" in environment if program == "torchrun" else value not in ("1", None)
        if value is not None and is_rank:
            raise UsageError(
                f"{program} has started this command ({variable}={value}), but rampcli starts the"
                " processes of a run itself",
                remedy=(
                    f"the same command without {program}",
                    f"unset {variable}, if it is left over from another command",
                    f"{program} ... python -P -m rampcli.worker RUN_DIR, which is one rank",
                ),
            )


def check_variables(*, on_gpus: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Checks variables with which workers would fail, or would not do what they say.

    Args:
        on_gpus: the workers use NCCL.
    """
    known = [name for _, name in socket.if_nameindex()]
    gloo, nccl = (environment.get(name, "") for name in (GLOO_INTERFACES, NCCL_INTERFACES))
    missing = {GLOO_INTERFACES: [name for name in gloo.split(",") if name and name not in known]}
    if on_gpus and nccl and not nccl_interfaces(nccl, known):
        missing[NCCL_INTERFACES] = nccl.lstrip("^=").split(",")
    for variable, names in missing.items():
        if names:
            raise UsageError(
                f"{variable}={environment[variable]} in the environment names"
                f" {', '.join(names)}, which is no network interface of this machine",
                remedy=(f"unset {variable}", f"{variable}={' or '.join(known)}"),
            )
    threads = environment.get(THREADS_VARIABLE, "1").split(",")
    if not all(number.strip().isdecimal() and int(number) > 0 for number in threads):
        raise UsageError(
            f"{THREADS_VARIABLE}={','.join(threads)} in the environment is no number of threads",
            remedy=(f"unset {THREADS_VARIABLE}", f"{THREADS_VARIABLE}=1"),
        )


def check_chosen_gpus(
    environment: Mapping[str, str] = os.environ, *, count: int | None = None
) -> None:
    """Checks that CUDA uses the GPUs that CUDA_VISIBLE_DEVICES names.

    Args:
        count: how many GPUs this machine has; None to count them.
    """
    chosen, known = environment.get(GPUS), gpu_count() if count is None else count
    if chosen is not None and (reading := misread_gpus(chosen, count=known)) is not None:
        raise UsageError(
            f"{GPUS}={chosen} in the environment: {reading}",
            remedy=(
                f"unset {GPUS}",
                f"{GPUS}={','.join(map(str, range(known or 1)))}, or UUIDs as in nvidia-smi -L",
                f"{GPUS}= to hide all GPUs",
            ),
        )


def nccl_interfaces(text: str, known: Sequence[str]) -> list[str]:
    """Returns the interfaces that NCCL_SOCKET_IFNAME allows.

    They are prefixes of names; after `=`, whole names; after `^`, what is not to be used.
    """
    is_excluded, is_whole = "^" in text[:2], "=" in text[:2]
    names = [name for name in text.lstrip("^=").split(",") if name]
    return [
        name
        for name in known
        if any(name == one if is_whole else name.startswith(one) for one in names) != is_excluded
    ]
