"""Checks Slurm's programs, controller and partitions, for `rampcli doctor`."""

import shutil
import subprocess

from rampcli.errors import printable
from rampcli.launch.doctor.check import Check, Status
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
        partitions, problem = _partitions()
        remedy = "scontrol ping, or ask the cluster's administrators"
    if problem is None and wanted is not None and (unknown := set(wanted.split(",")) - partitions):
        problem = f"unknown partition {', '.join(sorted(unknown))}"
        remedy = f"launch.slurm.partition={' or '.join(sorted(partitions)) or 'null'}"
    if problem is None:
        names = ", ".join(sorted(partitions)) or "none"
        return Check("slurm", Status.ok, f"the controller answers; partitions: {names}")
    if is_used:
        return Check("slurm", Status.failure, problem, remedy)
    return Check("slurm", Status.not_needed, f"{problem}; only launch=slurm needs it")


def _partitions() -> tuple[set[str], str | None]:
    """Returns the names of the cluster's partitions, or why they are unknown."""
    try:
        done = subprocess.run(
            ["sinfo", "--all", "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return set(), f"the controller did not answer within {TIMEOUT_S:g} s"
    if done.returncode != 0:
        last_line = done.stderr.strip().splitlines()[-1:]
        return set(), printable(*last_line or [f"sinfo ended with exit code {done.returncode}"])
    return set(done.stdout.split()), None
