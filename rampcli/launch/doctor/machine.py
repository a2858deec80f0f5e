"""All checks of `rampcli doctor`, in the order in which it prints them.

Those of torch and GPUs are in `torch_checks`.
"""

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import rampcli
from rampcli.batch.quantities import counted
from rampcli.errors import RampcliError, UsageError, printable
from rampcli.files.locks import hold, is_held
from rampcli.launch.doctor.check import Check, Status, format_bytes
from rampcli.launch.doctor.torch_checks import TORCH_TIMEOUT_S, check_torch, if_here
from rampcli.launch.environment import (
    check_chosen_gpus,
    check_outer_launcher,
    check_variables,
)
from rampcli.launch.protocol import launchers
from rampcli.launch.start_checks import (
    check_files,
    disk_space,
    existing_part,
    launcher_refusals,
)
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.host import processors
from rampcli.planning.run_plan import Resolved
from rampcli.settings.data import missing_here

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
    here, processes = processors(), 0 if resolved is None else resolved.plan.largest_world_size
    if here < processes:
        finding = f"{here}, shared by up to {processes} processes"
        remedy = "fewer trainer.num_nodes or trainer.devices"
        return Check("processors", Status.warning, finding, remedy)
    up_to = f", for up to {counted(processes, 'process')}" if processes else ""
    return Check("processors", Status.ok, f"{here}{up_to}")


def check_shared_memory() -> Check:
    """Checks the size of /dev/shm."""
    try:
        size_bytes = shutil.disk_usage("/dev/shm").total
    except OSError:
        size_bytes = 0
    finding = f"{format_bytes(size_bytes)} in /dev/shm"
    if size_bytes >= LEAST_SHARED_MEMORY_BYTES:
        return Check("shared memory", Status.ok, finding)
    return Check(
        "shared memory",
        Status.warning,
        f"{finding}, which GPU processes use to communicate",
        "a larger /dev/shm; for a container, --shm-size=1g",
    )


def check_environment(resolved: Resolved | None) -> Check:
    """Checks the environment variables that decide whether workers can start."""
    name = "environment"
    found = if_here(Check(name, Status.ok, "no variable keeps workers from starting"), resolved)
    try:
        check_outer_launcher()
        if found.status is Status.ok:
            if resolved is None or resolved.config.trainer.accelerator != "cpu":
                check_chosen_gpus()
            check_variables(on_gpus=bool(visible_gpus()))
    except UsageError as error:
        return Check(name, Status.failure, error.message, error.remedy)
    return found


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


def check_start(resolved: Resolved) -> list[Check]:
    """Returns why a start would be refused, one failure for each reason, or a check that is ok.

    The check of the disk is another one.
    """
    name = "start"
    missing = [
        Check(name, Status.failure, f"{setting} does not exist on this machine", "its path here")
        for setting in missing_here(resolved.config)
    ]
    found: list[RampcliError] = []
    try:
        check_files(resolved)
        found += launcher_refusals(resolved)
    except RampcliError as error:
        found.append(error)
    failures = [
        Check(name, Status.failure, error.message, str(error.remedy or "") or None)
        for error in found
    ]
    return missing + failures or [
        Check(name, Status.ok, "corpora, weights and checkpoint fit the run")
    ]


def check_machine(
    resolved: Resolved | None = None, *, torch_timeout_s: float = TORCH_TIMEOUT_S
) -> list[Check]:
    """Checks this machine for a run, or for what any run needs, and leaves no files behind."""
    checks = [
        *check_torch(resolved, torch_timeout_s),
        *(check for each in launchers().values() for check in each.machine_checks(resolved)),
        *check_run_directory(resolved),
        check_environment(resolved),
        check_open_files(resolved),
        if_here(check_processors(resolved), resolved),
        if_here(check_shared_memory(), resolved),
    ]
    if resolved is None:
        return checks
    told = {check.finding for check in checks}
    return checks + [check for check in check_start(resolved) if check.finding not in told]
