"""Locks on files. They go with the processes that hold them, however those end."""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from rampcli.own_folder import OwnFolder

POLL_S = 0.05


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
    file = os.fdopen(OwnFolder(path.parent).open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+", encoding="utf-8")
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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # closing the file releases it at once
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
