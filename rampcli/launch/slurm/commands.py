"""Slurm's commands: submitting, listing, cancelling, releasing and requeueing jobs."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rampcli.errors import RampcliError
from rampcli.interpreter import safe_environment

TIME_LIMIT_S = 60.0
JOB_ID = re.compile(r"[1-9][0-9]{0,9}")
"""A job's id. Jobs of a chain are no parts of arrays or heterogeneous jobs, whose ids have more to them."""

OVER = frozenset(
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
"""The states of jobs that do not go on."""

# A folder may hold anything, also newlines. What ends a record is followed by the next one, or by nothing.
_QUEUE_FORMAT = "%A\x1f%T\x1f%j\x1f%r\x1f%Z\x1e"
_QUEUE_RECORD = re.compile(
    r"(\d+)\x1f(\w+)\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f(.*?)\x1e\n(?=\d+\x1f|\Z)", re.DOTALL
)

# Where the cluster is. Else `SLURM_...` describes the job that one is in, and a new job would take it for its own.
_OF_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# Defaults of a user's, which sbatch prefers to what a script says, and that a chain cannot do with.
_NOT_FOR_CHAINS = ("ARRAY_INX", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "REQUEUE", "SIGNAL", "WAIT")
_SPELLED_OTHERWISE = {"time": "TIMELIMIT"}
_DIRECTIVE = re.compile(r'^#SBATCH\s+"?--([a-z-]+)', re.MULTILINE)

# What Slurm says, the settings that it is about, and what to try.
_COMPLAINTS = (
    (r"qos", ("launch.slurm.qos",), "a quality of service that `sacctmgr show qos` lists"),
    (
        r"account",
        ("launch.slurm.account",),
        "an account that `sacctmgr show associations user=$USER` lists",
    ),
    (r"partition", ("launch.slurm.partition",), "a partition that `sinfo` lists"),
    (
        r"time limit|--time",
        ("launch.slurm.time",),
        "launch.slurm.time=4:00:00, or what `sinfo` shows as the partition's limit",
    ),
    (r"memory|--mem", ("launch.slurm.mem",), "launch.slurm.mem=null, for the cluster's default"),
    (
        r"gres|gpus",
        ("launch.slurm.gpus_per_node",),
        "launch.slurm.gpus_per_node=0, where the cluster does not count GPUs",
    ),
    (
        r"node count|node configuration",
        ("trainer.num_nodes", "trainer.devices"),
        "nodes such as `sinfo --Node --long` lists",
    ),
    (
        r"contact|connect|communication|timed out",
        (),
        "`scontrol ping`, which says whether the controller answers",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """A job that Slurm knows: one that waits, runs, or has ended not long ago.

    Attributes:
        job: its id.
        state: RUNNING, PENDING, ...
        name: that it was given.
        reason: why it is in this state; None where there is none.
        folder: from where it was submitted.
    """

    job: str
    state: str
    name: str
    reason: str | None
    folder: str

    @property
    def is_over(self) -> bool:
        """Whether it does not go on."""
        return self.state in OVER


def submit(script: Path, *, folder: Path, options: Sequence[str] = ()) -> str:
    """Hand a script to sbatch; gives the id of the job.

    Args:
        script: of the job.
        folder: where the job starts.
        options: of sbatch, before those in the script.

    Raises:
        RampcliError: it was refused, or it is not known whether it was.
    """
    given = _DIRECTIVE.findall(script.read_text(encoding="utf-8"))
    said = _run(
        "sbatch",
        "--parsable",
        *options,
        str(script),
        folder=folder,
        environment=_environment_of_jobs(given),
    )
    job = said.strip().partition(";")[0]  # a cluster of several adds its name
    if not JOB_ID.fullmatch(job):
        raise RampcliError(
            f"sbatch printed {job!r} instead of a job's id",
            remedy="`squeue --me`, which shows whether there is a job",
        )
    return job


def jobs_by_id(jobs: Sequence[str]) -> list[QueuedJob]:
    """Those of the jobs that Slurm still knows.

    Raises:
        RampcliError: squeue failed.
    """
    try:
        return _queue(f"--jobs={','.join(jobs)}") if jobs else []
    except RampcliError as error:
        if "Invalid job id" in error.message:  # it says so of a single one
            return []
        raise


def jobs_of_this_user() -> list[QueuedJob]:
    """All that Slurm knows of the user's.

    Raises:
        RampcliError: squeue failed.
    """
    return _queue(f"--user={os.getuid()}")


def cancel(jobs: Sequence[str], *, only_waiting: bool = False) -> None:
    """End jobs at once; those that are over are left as they are.

    Raises:
        RampcliError: scancel failed.
    """
    _scancel(*(["--state=PENDING"] if only_waiting else []), *jobs)


def ask_to_save(jobs: Sequence[str]) -> None:
    """Send SIGUSR1 to what the scripts of running jobs have become, as Slurm does ahead of a time limit.

    Raises:
        RampcliError: scancel failed.
    """
    _scancel("--signal=USR1", "--batch", *jobs)


def release(job: str) -> None:
    """Let a job start that was submitted with `--hold`.

    Raises:
        RampcliError: scontrol failed.
    """
    _run("scontrol", "release", job)


def requeue(job: str) -> None:
    """End a job and put it back into the queue, under the same id.

    Raises:
        RampcliError: scontrol failed.
    """
    _run("scontrol", "requeue", job)


def address_of(node: str) -> str:
    """Where other nodes reach a node: names need not resolve.

    Raises:
        RampcliError: scontrol failed.
    """
    address = re.search(r"NodeAddr=(\S+)", _run("scontrol", "show", "node", node))
    return node if address is None else address[1]


def nodes_named(names: str) -> list[str]:
    """Returns the nodes of a list as Slurm writes it, `node[1-3]` for example.

    Raises:
        RampcliError: scontrol failed.
    """
    return _run("scontrol", "show", "hostnames", names).split()


def _queue(which: str) -> list[QueuedJob]:
    said = _run("squeue", "--noheader", "--states=all", f"--format={_QUEUE_FORMAT}", which)
    return [
        QueuedJob(
            job=job,
            state=state,
            name=name,
            reason=None if reason == "None" else reason,
            folder=folder,
        )
        for job, state, name, reason, folder in _QUEUE_RECORD.findall(said)
    ]


def _scancel(*words: str) -> None:
    try:
        _run("scancel", *words)
    except RampcliError as error:
        if not re.search("Invalid job id|already complet", error.message):  # it has ended meanwhile
            raise


def _environment_of_jobs(given: Sequence[str]) -> dict[str, str]:
    """Returns what a job inherits, without what would make it another one than its script says; `given` are the script's options."""
    of_script = [
        _SPELLED_OTHERWISE.get(option, option.upper().replace("-", "_")) for option in given
    ]
    unwanted = {f"SBATCH_{name}" for name in (*_NOT_FOR_CHAINS, *of_script)}
    return {
        name: value
        for name, value in safe_environment().items()
        if not name.startswith("SLURM_") or name in _OF_CLUSTER
        if name not in unwanted
    }


def _environment_of_commands() -> dict[str, str]:
    """Without the user's defaults for what squeue shows and scancel cancels."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SQUEUE_", "SCANCEL_", "SCONTROL_"))
    }


def _run(
    program: str,
    *words: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a command prints.

    Raises:
        RampcliError: with what it said.
    """
    try:
        done = subprocess.run(
            [program, *words],
            cwd=folder,
            env=environment or _environment_of_commands(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise RampcliError(
            f"there is no {program} on PATH",
            keys=("launch.launcher",),
            remedy="a login node of a cluster with Slurm, or launch=local",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RampcliError(
            f"{program} gave no answer in {TIME_LIMIT_S:g} s",
            remedy="`scontrol ping`, which says whether the controller answers",
        ) from error
    if done.returncode != 0:
        raise _refusal(program, os.fsdecode(done.stderr) or os.fsdecode(done.stdout))
    return os.fsdecode(done.stdout)


def _refusal(program: str, said: str) -> RampcliError:
    lines = [
        line.removeprefix(f"{program}: ").removeprefix("error: ")
        for line in said.splitlines()
        if line.strip()
    ]
    message = f"{program}: {'; '.join(lines)}"
    for pattern, keys, remedy in _COMPLAINTS:
        if re.search(pattern, message, re.IGNORECASE):
            return RampcliError(message, keys=keys, remedy=remedy)
    return RampcliError(message)
