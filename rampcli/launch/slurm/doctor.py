"""Checks Slurm's programs, controller and partitions, for `rampcli doctor`."""

import shutil

from rampcli.errors import RampcliError
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.slurm import commands
from rampcli.planning.run_plan import Resolved

TIMEOUT_S = 10.0
PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")


def check_slurm(resolved: Resolved | None) -> Check:
    """Checks that a run can be submitted from this machine.

    Problems are failures only for a run with `launch=slurm`.
    """
    is_used = resolved is not None and resolved.config.launch.launcher == "slurm"
    if resolved is not None and not is_used:
        finding = f"launch.launcher={resolved.config.launch.launcher}"
        return Check("slurm", Status.not_needed, finding)
    wanted = None if resolved is None else resolved.config.launch.slurm.partition
    problem, remedy, partitions = None, None, set[str]()
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        problem = f"not on PATH: {', '.join(missing)}"
        remedy = "a login node of the cluster, Slurm's client programs, or launch=local"
    else:
        remedy = "scontrol ping, or ask the cluster's administrators"
        try:
            partitions = commands.partitions(within_s=TIMEOUT_S)
        except RampcliError as error:
            problem = error.message
    if problem is None and wanted is not None and (unknown := set(wanted.split(",")) - partitions):
        problem = f"unknown partition {', '.join(sorted(unknown))}"
        remedy = f"launch.slurm.partition={' or '.join(sorted(partitions)) or 'null'}"
    if problem is None:
        names = ", ".join(sorted(partitions)) or "none"
        return Check("slurm", Status.ok, f"the controller answers; partitions: {names}")
    if is_used:
        return Check("slurm", Status.failure, problem, remedy)
    return Check("slurm", Status.not_needed, f"{problem}; only launch=slurm needs it")
