"""How a worker that srun has started finds its rank and the address of rank 0."""

from collections.abc import Mapping

from rampcli.errors import RampcliError
from rampcli.launchers import Starter


def address_of_step(environment: Mapping[str, str]) -> tuple[str, int]:
    """Returns the address of the job step's first node, and a number that few steps share.

    Raises:
        RampcliError: Slurm does not say.
    """
    from rampcli.launch.slurm import commands  # here, because few workers are started so

    try:
        first = commands.nodes_named(environment["SLURM_STEP_NODELIST"])[0]
        address = commands.address_of(first)
    except RampcliError as error:
        raise RampcliError(
            f"the address of rank 0 is unknown: {error.message}",
            remedy="export MASTER_ADDR and MASTER_PORT in the job's script",
        ) from error
    return address, 31 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])


SRUN = Starter(
    name="srun",
    rank="SLURM_PROCID",
    world_size="SLURM_STEP_NUM_TASKS",
    local_rank="SLURM_LOCALID",
    local_size="SLURM_STEP_TASKS_PER_NODE",
    address=address_of_step,
)
