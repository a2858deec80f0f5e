"""Locks on files. They go with the processes that hold them, however those end."""

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from rampcli.own_folder import OwnFolder

POLL_S = 0.05
HELD_ALONE = re.compile(r"^lock:.* FLOCK +ADVISORY +WRITE ", re.MULTILINE)


def hold(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> IO[str]:
    """Lock a file, which is made if it is not there. Closing the returned file releases the lock.

    Args:
        path: of the file. What it holds stays as it is.
        shared: whether others may hold it at the same time, if they share it too.
        wait_s: how long to wait for it.

    Raises:
        BlockingIOError: somebody else holds it.
        UsageError: it is a symbolic link, or not a regular file.
    """
    file = os.fdopen(
        OwnFolder(path.parent).open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT),
        "a+",
        encoding="utf-8",
    )
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                raise
            time.sleep(POLL_S)
        else:
            return file


def is_held(path: Path) -> bool:
    """Whether somebody holds a lock, shared or not, right now. Makes no file."""
    try:
        descriptor = OwnFolder(path.parent).open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(
            descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
        )  # closing the file releases it at once
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_here(path: Path) -> int | None:
    """Returns the process of this user that holds a lock alone, or None if no such process is seen on this machine.

    What the file says is not asked: anybody may have written it. Linux lists the locks of each open file in /proc/PID/fdinfo.
    """
    try:
        wanted = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended since, or belongs to somebody else
            if process.stat().st_uid == os.getuid() and any(
                _holds(process, file.name, wanted) for file in (process / "fd").iterdir()
            ):
                return int(process.name)
    return None


def _holds(process: Path, descriptor: str, wanted: os.stat_result) -> bool:
    with suppress(FileNotFoundError):  # closed since
        found = (process / "fd" / descriptor).stat()
        if os.path.samestat(found, wanted):
            return bool(
                HELD_ALONE.search((process / "fdinfo" / descriptor).read_text(encoding="utf-8"))
            )
    return False
