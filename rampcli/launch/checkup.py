"""Whether this machine has what a launch needs: one finding for each part, and what to do about those that are not well."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import rampcli
from rampcli.checkpoint.manifest import complete_checkpoints
from rampcli.config.choices import Accelerator, Launcher
from rampcli.config.model_size import checkpoint_bytes
from rampcli.config.resolve import Resolved
from rampcli.errors import UsageError, printable
from rampcli.interpreter import python, safe_environment
from rampcli.launch.resources import count_gpus, gpus_wanted, visible_gpus
from rampcli.lifeline import signal_name
from rampcli.locks import hold, is_held
from rampcli.processors import processors
from rampcli.run_directory import RunDirectory

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 10)
MACHINE = "rampcli.worker.machine"
TORCH_LIMIT_S = 60.0
SLURM_LIMIT_S = 10.0
SLURM_COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
CLOCKS_APART_S = 2.0
LEAST_SHARED_MEMORY_BYTES = 64 * 2**20
LEAST_OPEN_FILES = 1024
FILES_OF_A_PROCESS, FILES_PER_PEER = 256, 8


class Status(StrEnum):
    """How a check came out."""

    ok = "ok"
    warning = "warning"
    failure = "failure"
    not_needed = "not needed"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one part of the machine.

    Attributes:
        name: of the part.
        status: whether a launch can do with it.
        finding: with figures.
        remedy: what to do; None where it is well.
    """

    name: str
    status: Status
    finding: str
    remedy: str | None = None


def check_up(
    resolved: Resolved | None = None, *, torch_limit_s: float = TORCH_LIMIT_S
) -> list[Check]:
    """Look at this machine, and at what a run needs of it. Leaves nothing behind.

    Args:
        resolved: the run; None: what any run needs.
        torch_limit_s: how long torch may take to start and to try itself.
    """
    return [
        *_torch(resolved, torch_limit_s),
        _slurm(resolved),
        *_run_directory(resolved),
        _open_files(resolved),
        _processors(resolved),
        _shared_memory(resolved),
    ]


def _ask_torch(interpreter: str, *, limit_s: float) -> tuple[dict[str, Any], str]:
    """What `rampcli.worker.machine` says under an interpreter, as far as it comes; and how it ended."""
    try:
        done = subprocess.run(
            python(MACHINE, interpreter=interpreter),
            env=safe_environment(),
            capture_output=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return {}, f"{interpreter} does not start: {error.strerror}"
    except subprocess.TimeoutExpired as late:
        printed, ended = late.stdout or b"", f"no answer within {limit_s:g} s"
    else:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        how = (
            signal_name(-done.returncode) if done.returncode < 0 else f"exit code {done.returncode}"
        )
        printed, ended = done.stdout, ": ".join([f"it ended with {how}", *said])
    facts: dict[str, Any] = {}
    for line in printed.decode(errors="replace").splitlines():
        with suppress(ValueError, TypeError):  # half a line, or one of torch's own
            facts |= json.loads(line)
    return facts, printable(facts.get("error", ended))


def _torch(resolved: Resolved | None, limit_s: float) -> list[Check]:
    """Python, torch and what torch can do here. The first part that says nothing is what is wrong; those behind it are not known."""
    interpreter = sys.executable
    if resolved is not None and _runs_elsewhere(resolved):
        slurm = resolved.config.launch.slurm
        if slurm.container:
            return [
                Check(
                    "torch",
                    Status.not_needed,
                    f"the workers run in a container: {slurm.container[0]}",
                )
            ]
        interpreter = slurm.python or interpreter
    facts, ended = _ask_torch(interpreter, limit_s=limit_s)
    checks = []
    for part, (check, remedy) in TORCH_CHECKS.items():
        if part not in facts:
            checks.append(Check(part, Status.failure, ended, remedy))
            break
        checks.append(check(facts, resolved))
    return checks


def _python(facts: dict[str, Any], _: Resolved | None) -> Check:
    version = ".".join(map(str, facts["python"]))
    if tuple(facts["python"]) >= LEAST_PYTHON:
        return Check("python", Status.ok, version)
    return Check("python", Status.failure, f"{version} is too old", PYTHON_REMEDY)


def _torch_version(facts: dict[str, Any], _: Resolved | None) -> Check:
    version = str(facts["torch"])
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_TORCH:
        return Check("torch", Status.failure, f"{version} is too old", TORCH_REMEDY)
    built = "without CUDA" if facts["cuda"] is None else f"CUDA {facts['cuda']}"
    return Check("torch", Status.ok, f"{version}, {built}")


def _gloo(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    if facts["gloo"]["error"] is None:
        return Check("gloo", Status.ok, f"{facts['gloo']['processes']} processes added up a tensor")
    status = Status.warning if _accelerator(resolved) is Accelerator.gpu else Status.failure
    return Check("gloo", status, printable(facts["gloo"]["error"]), GLOO_REMEDY)


def _gpus(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    if resolved is not None and _runs_elsewhere(resolved):
        return _elsewhere("gpus")
    accelerator = _accelerator(resolved)
    if accelerator is Accelerator.cpu:
        return Check("gpus", Status.not_needed, "trainer.accelerator=cpu")
    chosen, seen, usable = (
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        len(visible_gpus()),
        len(facts["gpus"]),
    )
    try:
        wanted = 0 if resolved is None else gpus_wanted(resolved.config, resolved.plan)
    except UsageError as error:
        return Check(
            "gpus", Status.failure, error.message, UNHIDE_REMEDY if chosen == "" else error.remedy
        )
    if usable < seen:
        status = (
            Status.failure if accelerator is Accelerator.gpu and usable < wanted else Status.warning
        )
        return Check(
            "gpus",
            status,
            _unusable(facts, chosen, seen),
            CUDA_REMEDY if facts["cuda"] is None else DRIVER_REMEDY,
        )
    if not usable:
        here = "none" if chosen is None else "CUDA_VISIBLE_DEVICES is empty"
        return Check("gpus", Status.ok, f"{here}: runs compute on the CPU")
    finding = ", ".join(
        f"{count} x {name} ({_size(memory_bytes)})"
        for (name, memory_bytes), count in Counter(
            (gpu["name"], gpu["memory_bytes"]) for gpu in facts["gpus"]
        ).items()
    )
    if resolved is not None and not wanted:
        finding += f"; the largest stage has {resolved.plan.largest_world_size} processes, so trainer.accelerator=auto computes on the CPU"
        return Check(
            "gpus",
            Status.warning,
            finding,
            "fewer trainer.num_nodes or trainer.devices, or a machine with the GPUs",
        )
    return Check(
        "gpus", Status.ok, finding if not wanted else f"{finding}; the largest stage takes {wanted}"
    )


def _unusable(facts: dict[str, Any], chosen: str | None, seen: int) -> str:
    why = "it was built without CUDA" if facts["cuda"] is None else facts["cuda_error"]
    named = f"of CUDA_VISIBLE_DEVICES={chosen}" if chosen else "of this machine"
    return printable(
        f"torch can use {len(facts['gpus'])} of the {seen} GPUs {named}{f': {why}' if why else ''}"
    )


def _nccl(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    nccl = facts["nccl"]
    if resolved is not None and _runs_elsewhere(resolved):
        return _elsewhere("nccl")
    if _accelerator(resolved) is Accelerator.cpu or not nccl["processes"]:
        return Check("nccl", Status.not_needed, "no GPUs")
    if nccl["error"] is None:
        return Check("nccl", Status.ok, f"{count_gpus(nccl['processes'])} added up a tensor")
    return Check("nccl", Status.failure, printable(nccl["error"]), NCCL_REMEDY)


def _slurm(resolved: Resolved | None) -> Check:
    wanted = resolved is not None and _runs_elsewhere(resolved)
    if resolved is not None and not wanted:
        return Check(
            "slurm", Status.not_needed, f"launch.launcher={resolved.config.launch.launcher}"
        )
    problem, remedy, partitions = None, None, set[str]()
    if missing := [command for command in SLURM_COMMANDS if shutil.which(command) is None]:
        problem, remedy = (
            f"there is no {', '.join(missing)}",
            "a login node of the cluster, Slurm's client programs, or launch=local",
        )
    else:
        partitions, problem = _partitions()
        remedy = "scontrol ping; the cluster's administrators know more"
    partition = resolved.config.launch.slurm.partition if resolved is not None else None
    if (
        problem is None
        and partition is not None
        and (unknown := set(partition.split(",")) - partitions)
    ):
        problem = f"there is no partition {', '.join(sorted(unknown))}"
        remedy = f"launch.slurm.partition={' or '.join(sorted(partitions)) or 'null'}"
    if problem is None:
        return Check(
            "slurm",
            Status.ok,
            f"the controller answers; partitions: {', '.join(sorted(partitions)) or 'none'}",
        )
    if wanted:
        return Check("slurm", Status.failure, problem, remedy)
    return Check("slurm", Status.not_needed, f"{problem}; only launch=slurm needs it")


def _partitions() -> tuple[set[str], str | None]:
    """The names of the cluster's partitions; and why they are not known."""
    try:
        done = subprocess.run(
            ["sinfo", "--all", "--noheader", "--format=%R"],
            capture_output=True,
            text=True,
            timeout=SLURM_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return set(), f"the controller does not answer within {SLURM_LIMIT_S:g} s"
    if done.returncode != 0:
        return set(), printable(
            next(
                reversed(done.stderr.strip().splitlines()),
                f"sinfo ended with exit code {done.returncode}",
            )
        )
    return set(done.stdout.split()), None


def _run_directory(resolved: Resolved | None) -> list[Check]:
    """Whether files can be written and locked where the run will be, what room there is, and what time it is there."""
    path = Path("runs") if resolved is None else resolved.run_dir
    # Not exists(): that fails where a folder above may not be looked into, and a link to nowhere is in the way too.
    place = next(
        above for above in (path.absolute(), *path.absolute().parents) if os.path.lexists(above)
    )
    name, shown = (
        "run directory",
        printable(f"{path}, in {place}" if place != path.absolute() else str(path)),
    )
    if not place.is_dir():
        return [Check(name, Status.failure, printable(f"{place} is no folder"), PLACE_REMEDY)]
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".rampcli_doctor_") as probe:
            before_s = time.time()
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
            after_s = time.time()
            written_s = Path(probe.name).stat().st_mtime
            locks = _locks(Path(probe.name))
    except OSError as error:
        return [
            Check(
                name,
                Status.failure,
                printable(f"cannot write in {place}: {error.strerror}"),
                PLACE_REMEDY,
            ),
            _disk(resolved, place),
        ]
    ahead_s = max(written_s - after_s, 0.0) or min(written_s - before_s, 0.0)
    return [
        Check(name, Status.ok, f"{shown}, can be written"),
        locks,
        _disk(resolved, place),
        check_clock(ahead_s, now_s=after_s),
    ]


def _locks(path: Path) -> Check:
    finding = "a lock does not keep a second one out"
    try:
        with hold(path):
            if is_held(path):
                return Check("locks", Status.ok, "a locked file is refused to others")
    except OSError as error:
        finding = f"files cannot be locked: {error.strerror}"
    return Check("locks", Status.failure, finding, LOCKS_REMEDY)


def _disk(resolved: Resolved | None, place: Path) -> Check:
    free_bytes = shutil.disk_usage(place).free
    if resolved is None:
        return Check("disk", Status.ok, f"{_size(free_bytes)} free")
    keep_last, each_bytes = resolved.config.checkpoint.keep_last, checkpoint_bytes(resolved.config)
    there = min(keep_last, len(complete_checkpoints(RunDirectory(resolved.run_dir))))
    more = keep_last + 1 - there  # the oldest goes once the newest is complete
    finding = f"{_size(free_bytes)} free; {f'{more} more checkpoints' if more > 1 else 'one more checkpoint'} of {_size(each_bytes)}"
    if free_bytes >= more * each_bytes:
        return Check("disk", Status.ok, f"{finding} will fit")
    fewer = there + free_bytes // each_bytes - 1
    remedy = f"run_dir= on a disk with {_size(more * each_bytes)} free{f', or checkpoint.keep_last={fewer}' if fewer > 0 else ''}"
    return Check("disk", Status.failure, f"{finding} will not fit", remedy)


def check_clock(ahead_s: float, *, now_s: float) -> Check:
    """Job dependencies and events are read on several hosts, so their clocks should agree.

    Args:
        ahead_s: how far the clock of the run directory's file system is ahead of this machine's.
        now_s: what this machine's says, since the epoch.
    """
    installed_s = max(path.lstat().st_mtime for path in Path(rampcli.__file__).parent.rglob("*.py"))
    finding = f"at most {CLOCKS_APART_S:g} s from the run directory's"
    if now_s < installed_s - CLOCKS_APART_S:
        now, then = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(moment_s))
            for moment_s in (now_s, installed_s)
        )
        finding = f"it says {now}, and rampcli was installed at {then}"
    elif abs(ahead_s) > CLOCKS_APART_S:
        finding = (
            f"the run directory's is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}"
        )
    else:
        return Check("clock", Status.ok, finding)
    return Check("clock", Status.warning, finding, CLOCK_REMEDY)


def _open_files(resolved: Resolved | None) -> Check:
    """A worker has some dozen files open, with CUDA some hundred, and one or two connections to every other for each of its groups.
    NCCL opens several per peer. An agent has one connection to each worker."""
    needed = max(
        LEAST_OPEN_FILES,
        FILES_OF_A_PROCESS
        + FILES_PER_PEER * (0 if resolved is None else resolved.plan.largest_world_size),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Check(
            "open files",
            Status.ok,
            "no limit" if soft == resource.RLIM_INFINITY else f"up to {soft:,} per process",
        )
    raisable = hard == resource.RLIM_INFINITY or hard >= needed
    remedy = (
        f"ulimit -n {needed}"
        if raisable
        else f"the administrator can raise the hard limit, {hard:,}"
    )
    return Check(
        "open files",
        Status.warning,
        f"up to {soft:,} per process, and a run may take {needed:,}",
        remedy,
    )


def _processors(resolved: Resolved | None) -> Check:
    if resolved is not None and _runs_elsewhere(resolved):
        return _elsewhere("processors")
    here, wanted = processors(), 0 if resolved is None else resolved.plan.largest_world_size
    finding = f"{here}, for up to {wanted} processes" if wanted else str(here)
    if here >= wanted:
        return Check("processors", Status.ok, finding)
    return Check(
        "processors",
        Status.warning,
        f"{finding} that take turns",
        "fewer trainer.num_nodes or trainer.devices",
    )


def _shared_memory(resolved: Resolved | None) -> Check:
    if resolved is not None and _runs_elsewhere(resolved):
        return _elsewhere("shared memory")
    try:
        size_bytes = shutil.disk_usage("/dev/shm").total
    except OSError:
        size_bytes = 0
    if size_bytes >= LEAST_SHARED_MEMORY_BYTES:
        return Check("shared memory", Status.ok, f"{_size(size_bytes)} in /dev/shm")
    remedy = "more for /dev/shm: a container's --shm-size=1g"
    return Check(
        "shared memory",
        Status.warning,
        f"{_size(size_bytes)} in /dev/shm, through which processes with GPUs talk",
        remedy,
    )


def _runs_elsewhere(resolved: Resolved) -> bool:
    return resolved.config.launch.launcher is Launcher.slurm


def _elsewhere(name: str) -> Check:
    return Check(name, Status.not_needed, "launch.launcher=slurm: the jobs run on other machines")


def _accelerator(resolved: Resolved | None) -> Accelerator:
    return Accelerator.auto if resolved is None else resolved.config.trainer.accelerator


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def _version(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


PYTHON_REMEDY = (
    f"a virtual environment of Python {_version(LEAST_PYTHON)} or newer, with rampcli in it"
)
TORCH_REMEDY = f'pip install --force-reinstall "torch>={_version(LEAST_TORCH)}"'
GLOO_REMEDY = "this host's name in /etc/hosts, or GLOO_SOCKET_IFNAME=lo where all processes are on this machine"
DRIVER_REMEDY = (
    "a driver for torch's CUDA, and in CUDA_VISIBLE_DEVICES only GPUs that nvidia-smi -L lists"
)
CUDA_REMEDY = "torch for CUDA (pytorch.org/get-started), or trainer.accelerator=cpu"
UNHIDE_REMEDY = "unset CUDA_VISIBLE_DEVICES"
NCCL_REMEDY = "the same with NCCL_DEBUG=INFO; NCCL_P2P_DISABLE=1 where GPUs cannot read each other"
PLACE_REMEDY = "run_dir= below a folder that you may write, on a disk that has room"
CLOCK_REMEDY = "timedatectl set-ntp true, or another way to set the clock"
LOCKS_REMEDY = (
    "run_dir= on a disk with locks; NFS from version 4 has them, and Lustre mounted with -o flock"
)

TORCH_CHECKS = {
    "python": (_python, PYTHON_REMEDY),
    "torch": (_torch_version, TORCH_REMEDY),
    "gloo": (_gloo, GLOO_REMEDY),
    "gpus": (_gpus, DRIVER_REMEDY),
    "nccl": (_nccl, NCCL_REMEDY),
}
"""What the machine says, in the order in which it does: who reads it, and what to do where it is not said."""
