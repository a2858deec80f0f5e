"""Checks of the run directory: writing, locks, disk space and clock."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import rampcli
from rampcli.errors import printable
from rampcli.files.locks import hold, is_held
from rampcli.launch.disk_space import disk_space, existing_part
from rampcli.launch.doctor.check import Check, Status, format_bytes
from rampcli.planning.run_plan import Resolved

CLOCK_TOLERANCE_S = 2.0
FOLDER_REMEDY = "run_dir= in a folder that you may write to, on a disk with free space"
CLOCK_REMEDY = "timedatectl set-ntp true, or another way to set the clock"
LOCKS_REMEDY = (
    "run_dir= on a file system with locks: NFS 4 or later, or Lustre mounted with -o flock"
)


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
