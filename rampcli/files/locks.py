"""Locks on files, which the kernel releases when the process that holds them ends."""

import errno
import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from rampcli.files.guarded_folder import GuardedFolder

RETRY_LOCK_S = 0.05
SHARE_WAIT_S = 60.0
"""How long to wait for a shared lock: checking the lock takes it for an instant."""
_EXCLUSIVE = re.compile(r"^lock:.* FLOCK +ADVISORY +WRITE ", re.MULTILINE)


def hold(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> IO[str]:
    """Locks a file, and returns it. Closing the returned file releases the lock.

    Args:
        path: file to lock. It is created if it does not exist; its contents are kept.
        shared: allow other shared locks at the same time.

    Raises:
        BlockingIOError: another process holds the lock.
        UsageError: the path is a symbolic link, or not a regular file.
    """
    file = os.fdopen(
        GuardedFolder(path.parent).open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT),
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
            time.sleep(RETRY_LOCK_S)
        else:
            return file


def is_held(path: Path) -> bool:
    """Returns whether a file is locked, shared or not. Does not create the file."""
    folder = GuardedFolder(path.parent)
    try:
        descriptor = folder.open(path, os.O_RDWR)  # NFS needs a descriptor that is open for writing
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        descriptor = folder.open(path, os.O_RDONLY)  # a run of another user, or a read-only disk
    try:
        # Closing the file releases the lock at once.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_here(path: Path) -> int | None:
    """Returns the ID of this user's process that holds an exclusive lock on this machine, or None.

    Linux lists the locks of each open file in /proc/PID/fdinfo. The contents of the lock file are
    not trusted: another user may have written them.
    """
    try:
        wanted = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if process.stat().st_uid == os.getuid() and any(
                _holds(process, file.name, wanted) for file in (process / "fd").iterdir()
            ):
                return int(process.name)
    return None


def _holds(process: Path, descriptor: str, wanted: os.stat_result) -> bool:
    with suppress(FileNotFoundError):  # the file has been closed
        found = (process / "fd" / descriptor).stat()
        if os.path.samestat(found, wanted):
            return bool(
                _EXCLUSIVE.search((process / "fdinfo" / descriptor).read_text(encoding="utf-8"))
            )
    return False
