"""Locks on files. They go with the processes that hold them, however those end."""

import fcntl
import time
from pathlib import Path
from typing import IO

POLL_S = 0.05


def hold(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> IO[str]:
    """Lock a file, which is made where it is not there. The lock is let go when the returned file is closed.

    Args:
        path: of the file. What it holds stays as it is.
        shared: with other holders that share it, but with none that does not.
        wait_s: how long to wait for it.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    file = path.open("a+", encoding="utf-8")
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
    """Whether somebody holds a lock, shared or not, right now."""
    if not path.exists():
        return False
    try:
        hold(path).close()
    except BlockingIOError:
        return True
    return False
