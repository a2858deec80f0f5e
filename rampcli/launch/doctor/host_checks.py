"""Checks of open files, processors, shared memory and the run directory with its disk and clock."""

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import rampcli
from rampcli.batch.quantities import counted
from rampcli.errors import UsageError, printable
from rampcli.files.locks import hold, is_held
from rampcli.launch.doctor.check import Check, Status, format_bytes
from rampcli.launch.environment import (
    check_chosen_gpus,
    check_outer_launcher,
    check_variables,
)
from rampcli.launch.protocol import launcher_of
from rampcli.launch.start_checks import disk_space, existing_part
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.host import processors
from rampcli.planning.run_plan import Resolved

LEAST_SHARED_MEMORY_BYTES = 64 * 2**20
LEAST_OPEN_FILES = 1024
FILES_PER_PROCESS, FILES_PER_PEER = 256, 8
"""A worker opens dozens of files, or hundreds with CUDA, and one or two connections to each
other worker per process group; NCCL opens several. A supervisor has a connection to each worker."""
CLOCK_TOLERANCE_S = 2.0
FOLDER_REMEDY = "run_dir= in a folder that you may write to, on a disk with free space"
CLOCK_REMEDY = "timedatectl set-ntp true, or another way to set the clock"
LOCKS_REMEDY = (
    "run_dir= on a file system with locks: NFS 4 or later, or Lustre mounted with -o flock"
)


def skip_if_remote(name: str, resolved: Resolved | None) -> Check | None:
    """Returns a check that is not needed if the workers start on other machines, else None."""
    if resolved is None or launcher_of(resolved.config).runs_here:
        return None
    launcher = resolved.config.launch.launcher
    finding = f"launch.launcher={launcher}: the workers run on other machines"
    return Check(name, Status.not_needed, finding)


def check_open_files(resolved: Resolved | None) -> Check:
    """Checks the limit on open files against the size of the run."""
    name = "open files"
    peers = 0 if resolved is None else resolved.plan.largest_world_size
    needed = max(LEAST_OPEN_FILES, FILES_PER_PROCESS + FILES_PER_PEER * peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Check(name, Status.ok, "no limit")
    if soft >= needed:
        return Check(name, Status.ok, f"up to {soft:,} per process")
    remedy = (
        f"ulimit -n {needed}"
        if hard == resource.RLIM_INFINITY or hard >= needed
        else f"the administrator can raise the hard limit, {hard:,}"
    )
    finding = f"up to {soft:,} per process, but a run may need {needed:,}"
    return Check(name, Status.warning, finding, remedy)


def check_processors(resolved: Resolved | None) -> Check:
    """Checks that each process of the largest stage has a processor."""
    name = "processors"
    if (elsewhere := skip_if_remote(name, resolved)) is not None:
        return elsewhere
    here, processes = processors(), 0 if resolved is None else resolved.plan.largest_world_size
    if here < processes:
        return Check(
            name,
            Status.warning,
            f"{here}, shared by up to {processes} processes",
            "fewer trainer.num_nodes or trainer.devices",
        )
    return Check(
        name,
        Status.ok,
        f"{here}, for up to {counted(processes, 'process')}" if processes else str(here),
    )


def check_shared_memory(resolved: Resolved | None) -> Check:
    """Checks the size of /dev/shm."""
    name = "shared memory"
    if (elsewhere := skip_if_remote(name, resolved)) is not None:
        return elsewhere
    try:
        size_bytes = shutil.disk_usage("/dev/shm").total
    except OSError:
        size_bytes = 0
    if size_bytes >= LEAST_SHARED_MEMORY_BYTES:
        return Check(name, Status.ok, f"{format_bytes(size_bytes)} in /dev/shm")
    return Check(
        name,
        Status.warning,
        f"{format_bytes(size_bytes)} in /dev/shm, which GPU processes use to communicate",
        "a larger /dev/shm; for a container, --shm-size=1g",
    )


def check_environment(resolved: Resolved | None) -> Check:
    """Checks the environment variables that decide whether workers can start."""
    name = "environment"
    try:
        check_outer_launcher()
        if (elsewhere := skip_if_remote(name, resolved)) is not None:
            return elsewhere
        if resolved is None or resolved.config.trainer.accelerator != "cpu":
            check_chosen_gpus()
        check_variables(on_gpus=bool(visible_gpus()))
    except UsageError as error:
        return Check(name, Status.failure, error.message, error.remedy)
    return Check(name, Status.ok, "no variable keeps workers from starting")


def check_run_directory(resolved: Resolved | None) -> list[Check]:
    """Checks that files can be written and locked where the run directory is or will be.

    Includes checks of the disk and the clock, unless a file is in the way.
    """
    path = Path("runs") if resolved is None else resolved.run_dir
    place = existing_part(path)
    name = "run directory"
    shown = printable(f"{path}, in {place}" if place != path.absolute() else str(path))
    if not place.is_dir():
        finding = printable(f"{place} is not a folder")
        return [Check(name, Status.failure, finding, FOLDER_REMEDY)]
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".rampcli_doctor_") as probe:
            before_s = time.time()
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
            after_s = time.time()
            written_s = Path(probe.name).stat().st_mtime
            locks = _check_locks(Path(probe.name))
    except OSError as error:
        finding = printable(f"cannot write in {place}: {error.strerror}")
        return [Check(name, Status.failure, finding, FOLDER_REMEDY), _check_disk(resolved, place)]
    ahead_s = max(written_s - after_s, 0.0) or min(written_s - before_s, 0.0)
    return [
        Check(name, Status.ok, f"{shown}, is writable"),
        locks,
        _check_disk(resolved, place),
        check_clock(ahead_s, now_s=after_s),
    ]


def _check_locks(path: Path) -> Check:
    finding = "a locked file could be locked again"
    try:
        with hold(path):
            if is_held(path):
                return Check("locks", Status.ok, "a locked file cannot be locked again")
    except OSError as error:
        finding = f"files cannot be locked: {error.strerror}"
    return Check("locks", Status.failure, finding, LOCKS_REMEDY)


def _check_disk(resolved: Resolved | None, place: Path) -> Check:
    """Checks that the checkpoints that the run keeps at once fit on the disk."""
    if resolved is None:
        return Check("disk", Status.ok, f"{format_bytes(shutil.disk_usage(place).free)} free")
    space = disk_space(resolved)
    if space.fitting >= space.more:
        return Check("disk", Status.ok, space.describe())
    status = Status.warning if space.fitting else Status.failure
    return Check("disk", status, space.describe(), str(space.remedy()))


def check_clock(ahead_s: float, *, now_s: float) -> Check:
    """Checks that this machine's clock is plausible and agrees with the file system's.

    Several hosts write times into events.jsonl; costs of restarts are their differences.

    Args:
        ahead_s: seconds by which the run directory's clock is ahead of this machine's.
        now_s: time of this machine's clock, in seconds since 1970.
    """
    installed_s = max(path.lstat().st_mtime for path in Path(rampcli.__file__).parent.rglob("*.py"))
    if now_s < installed_s - CLOCK_TOLERANCE_S:
        now, then = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(moment_s))
            for moment_s in (now_s, installed_s)
        )
        finding = f"the clock says {now}, but rampcli was installed at {then}"
    elif abs(ahead_s) > CLOCK_TOLERANCE_S:
        direction = "ahead" if ahead_s > 0 else "behind"
        finding = f"the run directory's clock is {abs(ahead_s):.0f} s {direction}"
    else:
        finding = f"within {CLOCK_TOLERANCE_S:g} s of the run directory's clock"
        return Check("clock", Status.ok, finding)
    return Check("clock", Status.warning, finding, CLOCK_REMEDY)
