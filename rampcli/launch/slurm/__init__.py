"""Launches a run as a chain of Slurm jobs, one per group of stages with the same processes."""

from collections.abc import Mapping

from rampcli.errors import RampcliError
from rampcli.launch.slurm.settings import SlurmConfig, check_names, check_words
from rampcli.plugins.launchers import Declaration, Starter

SLURM_FOLDER = "slurm"
"""Folder in the run directory for job scripts and jobs.json."""
SEARCH = "tune"
"""Name of the job that searches for micro batch sizes, and its argument in place of stages."""


def address_of_step(environment: Mapping[str, str]) -> tuple[str, int]:
    """Returns the address of the job step's first node, and a number that few steps share.

    Raises:
        RampcliError: Slurm does not say.
    """
    from rampcli.launch.slurm import commands  # here, because every command imports this module

    try:
        first = commands.nodes_named(environment["SLURM_STEP_NODELIST"])[0]
        address = commands.address_of(first)
    except RampcliError as error:
        raise RampcliError(
            f"the address of rank 0 is unknown: {error.message}",
            remedy="export MASTER_ADDR and MASTER_PORT in the job's script",
        ) from error
    return address, 31 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])


DECLARATION = Declaration(
    about="in a chain of jobs, one wherever new processes start",
    section=SlurmConfig,
    checks=(check_names, check_words),
    starter=Starter(
        name="srun",
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_size="SLURM_STEP_TASKS_PER_NODE",
        address=address_of_step,
    ),
)
