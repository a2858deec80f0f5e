"""Runs Slurm's commands: submits, lists, cancels, releases and requeues jobs.

Every function raises a RampcliError if its program is missing, fails or does not answer in time.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rampcli.errors import RampcliError
from rampcli.launch.slurm.settings import SlurmConfig
from rampcli.machine.interpreter import safe_environment
from rampcli.settings.launch import LaunchConfig
from rampcli.settings.trainer import TrainerConfig

TIME_LIMIT_S = 60.0
JOB_ID = re.compile(r"[1-9][0-9]{0,9}")
"""ID of a job. Array and heterogeneous jobs have longer IDs, but a chain contains neither."""

ENDED_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of jobs that will not run again."""

# A folder's name may contain any character, including newlines. So a record ends only where the
# next one begins, or at the end of the output.
QUEUE_FORMAT = "%A\x1f%T\x1f%j\x1f%r\x1f%Z\x1e"
_QUEUE_RECORD = re.compile(
    r"(\d+)\x1f(\w+)\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f(.*?)\x1e\n(?=\d+\x1f|\Z)", re.DOTALL
)

# These say where the cluster is. Other SLURM_ variables describe the job that this process runs in,
# and a new job must not inherit them.
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# SBATCH_ variables override the options in a script. These would break a chain.
_BREAKS_CHAINS = ("ARRAY_INX", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "REQUEUE", "SIGNAL", "WAIT")
_VARIABLE_OF_OPTION = {"time": "TIMELIMIT"}
_DIRECTIVE = re.compile(r'^#SBATCH\s+"?--([a-z-]+)', re.MULTILINE)

CONTROLLER_REMEDY = "`scontrol ping` shows whether the controller answers"
# Patterns in Slurm's error messages, the settings that they concern, and remedies.
_COMPLAINTS = (
    (r"qos", (SlurmConfig.qos,), "a quality of service that `sacctmgr show qos` lists"),
    (
        r"account",
        (SlurmConfig.account,),
        "an account that `sacctmgr show associations user=$USER` lists",
    ),
    (r"partition", (SlurmConfig.partition,), "a partition that `sinfo` lists"),
    (
        r"time limit|--time",
        (SlurmConfig.time,),
        "launch.slurm.time=4:00:00, or what `sinfo` shows as the partition's limit",
    ),
    (r"memory|--mem", (SlurmConfig.mem,), "launch.slurm.mem=null, for the cluster's default"),
    (
        r"gres|gpus",
        (SlurmConfig.gpus_per_node,),
        "launch.slurm.gpus_per_node=0, if the cluster does not schedule GPUs",
    ),
    (
        r"node count|node configuration",
        (TrainerConfig.num_nodes, TrainerConfig.devices),
        "nodes that `sinfo --Node --long` lists",
    ),
    (
        r"contact|connect|communication|timed out",
        (),
        CONTROLLER_REMEDY,
    ),
)


class QueuedJob(NamedTuple):
    """A job as squeue prints it: it waits, runs or has ended recently."""

    job: str
    state: str
    name: str
    reason: str
    folder: str


def submit(script: Path, *, folder: Path, options: Sequence[str] = ()) -> str:
    """Submits a script with sbatch, and returns the job's ID.

    Args:
        options: sbatch options, which override those in the script.

    Raises:
        RampcliError: the job was refused, or sbatch gave no clear answer.
    """
    directives = _DIRECTIVE.findall(script.read_text(encoding="utf-8"))
    output = _run(
        "sbatch",
        "--parsable",
        *options,
        str(script),
        folder=folder,
        environment=_job_environment(directives),
    )
    job = output.strip().partition(";")[0]  # a multi-cluster setup appends the cluster's name
    if not JOB_ID.fullmatch(job):
        raise RampcliError(
            f"sbatch printed {job!r} instead of a job ID",
            remedy="`squeue --me` shows whether the job was submitted",
        )
    return job


def jobs_by_id(jobs: Sequence[str]) -> list[QueuedJob]:
    """Returns those of the jobs that squeue still lists."""
    try:
        return _queue(f"--jobs={','.join(jobs)}") if jobs else []
    except RampcliError as error:
        if "Invalid job id" in error.message:  # squeue says so only if it is asked for one job
            return []
        raise


def jobs_of_this_user() -> list[QueuedJob]:
    """Returns all jobs of this user that squeue lists."""
    return _queue(f"--user={os.getuid()}")


def cancel(jobs: Sequence[str], *, only_waiting: bool = False) -> None:
    """Cancels jobs, or only those that wait. Jobs that have ended are ignored."""
    _scancel(*(["--state=PENDING"] if only_waiting else []), *jobs)


def signal_save(jobs: Sequence[str]) -> None:
    """Sends SIGUSR1 to the supervisors of running jobs, as Slurm does before a time limit."""
    _scancel("--signal=USR1", "--batch", *jobs)


def release(job: str) -> None:
    """Releases a job that was submitted with `--hold`."""
    _run("scontrol", "release", job)


def requeue(job: str) -> None:
    """Ends a job and puts it back into the queue under the same ID."""
    _run("scontrol", "requeue", job)


def restarts(job: str) -> int:
    """Returns how often a job has started again, or 0 if squeue does not list it."""
    words = ("--noheader", "--states=all", "--Format=restartcnt", f"--jobs={job}")
    return int(_run("squeue", *words).strip() or 0)


def address_of(node: str) -> str:
    """Returns the address at which other nodes reach a node, whose name may not resolve."""
    address = re.search(r"NodeAddr=(\S+)", _run("scontrol", "show", "node", node))
    return node if address is None else address[1]


def nodes_named(names: str) -> list[str]:
    """Returns the nodes in one of Slurm's node lists, for example `node[1-3]`."""
    return _run("scontrol", "show", "hostnames", names).split()


def partitions(*, within_s: float) -> set[str]:
    """Returns the names of the cluster's partitions."""
    words = ("--all", "--noheader", "--format=%R")
    return set(_run("sinfo", *words, within_s=within_s).split())


def _queue(which: str) -> list[QueuedJob]:
    output = _run("squeue", "--noheader", "--states=all", f"--format={QUEUE_FORMAT}", which)
    return [QueuedJob(*record) for record in _QUEUE_RECORD.findall(output)]


def _scancel(*words: str) -> None:
    try:
        _run("scancel", *words)
    except RampcliError as error:
        # The job may have ended in the meantime.
        if not re.search("Invalid job id|already complet", error.message):
            raise


def _job_environment(directives: Sequence[str]) -> dict[str, str]:
    """Returns the environment that a job inherits, given the options in its script.

    It leaves out variables that would override these options, or describe another job.
    """
    of_script = [
        _VARIABLE_OF_OPTION.get(option, option.upper().replace("-", "_")) for option in directives
    ]
    unwanted = {f"SBATCH_{name}" for name in (*_BREAKS_CHAINS, *of_script)}
    return {
        name: value
        for name, value in safe_environment().items()
        if not name.startswith("SLURM_") or name in _CLUSTER_VARIABLES
        if name not in unwanted
    }


def _run(
    program: str,
    *words: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    within_s: float | None = None,
) -> str:
    """Runs one of Slurm's programs, and returns what it prints.

    Args:
        environment: of the program; by default this one's without the user's defaults for squeue,
            scancel and scontrol.
    """
    limit_s = TIME_LIMIT_S if within_s is None else within_s
    defaults = ("SQUEUE_", "SCANCEL_", "SCONTROL_")
    try:
        done = subprocess.run(
            [program, *words],
            cwd=folder,
            env=environment
            or {name: text for name, text in os.environ.items() if not name.startswith(defaults)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise RampcliError(
            f"{program} is not on PATH",
            keys=(LaunchConfig.launcher,),
            remedy="a login node of a Slurm cluster, or launch=local",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RampcliError(
            f"{program} did not answer within {limit_s:g} s",
            remedy=CONTROLLER_REMEDY,
        ) from error
    if done.returncode != 0:
        raise _refusal(program, os.fsdecode(done.stderr) or os.fsdecode(done.stdout))
    return os.fsdecode(done.stdout)


def _refusal(program: str, output: str) -> RampcliError:
    """Returns the error for a program that failed, with the settings that it concerns."""
    lines = [
        line.removeprefix(f"{program}: ").removeprefix("error: ")
        for line in output.splitlines()
        if line.strip()
    ]
    is_fatal = lines[-1:] and lines[-1].startswith("fatal: ")
    message = f"{program}: {lines[-1] if is_fatal else '; '.join(lines)}"
    for pattern, keys, remedy in _COMPLAINTS:
        if re.search(pattern, message, re.IGNORECASE):
            return RampcliError(message, keys=keys, remedy=remedy)
    return RampcliError(message)
