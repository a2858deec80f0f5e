"""Ensures that a run directory has at most one supervisor."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from rampcli.errors import DamagedFileError, UsageError, printable
from rampcli.files.locks import hold, holder_here, is_held
from rampcli.files.records import POSITIVE, read_json
from rampcli.runs.directory import RunDirectory

WAIT_S = 0.2
"""How long to wait for the lock: checking it takes it for an instant."""
JOB_WAIT_S = 120.0
"""The same for a job that was requeued: it may still hold the lock on a node that was lost."""
MOST_LOCK_BYTES = 4096
CLAIM = {"host": str, "pid": POSITIVE, "in_thread?": bool}
"""Shape of the lock file, in the notation of `rampcli.files.records`."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that supervises a run.

    Attributes:
        host: host that it runs on, as it wrote into the lock file.
        pid: process ID on that host, or None if the lock file does not say.
        is_here: True if it was found among this user's processes on this machine. Otherwise
            host and pid are only what the lock file claims.
        in_thread: True if the lock file says that a thread trains which gets no stop signals. A
            signal would then end the process.
    """

    host: str
    pid: int | None
    is_here: bool
    in_thread: bool = False

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {printable(self.host)}"
            if self.pid is not None
            else "a process that is not visible from this machine"
        )

    def ask_to_stop(self, directory: RunDirectory) -> bool:
        """Sends SIGTERM to the process, and returns whether it was sent.

        Nothing is sent to a process that no longer holds the lock.
        """
        if not self.is_here or self.pid is None:
            return False
        with suppress(ProcessLookupError), ExitStack() as opened:
            process = os.pidfd_open(self.pid)
            opened.callback(os.close, process)
            # The open descriptor refers to this process even if its ID is reused.
            if holder_here(directory.lock) == self.pid:
                signal.pidfd_send_signal(process, signal.SIGTERM)
                return True
        return False


@contextmanager
def lock_run(
    directory: RunDirectory, *, wait_s: float = WAIT_S, has_signals: bool = False
) -> Iterator[None]:
    """Locks a run directory for this process. The lock ends with the process at the latest.

    Args:
        wait_s: seconds to wait for another process that holds the lock.
        has_signals: the main thread collects the stop signals of a run in another thread.

    Raises:
        UsageError: another process still holds the lock after `wait_s` seconds, the folder is
            not a run directory, or it contains links.
    """
    directory.claim()
    try:
        lock = hold(directory.lock, wait_s=wait_s)
    except BlockingIOError as error:
        raise UsageError(
            f"{directory.path} is in use by another rampcli ({_holder(directory)})",
            remedy="another name= or run_dir=",
        ) from error
    with lock:
        directory.refuse_links()
        lock.truncate(0)
        in_main = threading.current_thread() is threading.main_thread()
        claim = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "in_thread": not (in_main or has_signals),
        }
        json.dump(claim, lock)
        lock.flush()
        yield


def holder_of(directory: RunDirectory) -> Holder | None:
    """Returns the process that supervises a run, or None if the lock is free."""
    return _holder(directory) if is_held(directory.lock) else None


def _holder(directory: RunDirectory) -> Holder:
    host, pid, in_thread = "", None, False
    # The file may still be empty, and anybody may have written into it.
    with suppress(FileNotFoundError, DamagedFileError):
        claim = read_json(directory.lock, CLAIM, most_bytes=MOST_LOCK_BYTES)
        host, pid, in_thread = claim["host"], claim["pid"], claim.get("in_thread", False)
    if (found := holder_here(directory.lock)) is not None:
        return Holder(socket.gethostname(), found, is_here=True, in_thread=in_thread)
    return Holder(host, pid, is_here=False, in_thread=in_thread)
