"""One supervisor for a run directory."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rampcli.errors import DamagedFileError, UsageError, printable
from rampcli.locks import hold, holder_here, is_held
from rampcli.records import POSITIVE, read_json
from rampcli.run_directory import RunDirectory

LOOK_S = 0.2
"""Checking the lock takes it for an instant."""
SAID_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that supervises a run.

    Attributes:
        host: where it runs, as it wrote down itself.
        pid: its number there; None if the lock's file does not say.
        is_here: whether it was seen on this machine, among the processes of this user. Only then is it a fact.
    """

    host: str
    pid: int | None
    is_here: bool

    def __str__(self) -> str:
        return (
            f"process {self.pid} on {printable(self.host)}"
            if self.pid is not None
            else "a process that is not seen from here"
        )

    def ask_to_stop(self, directory: RunDirectory) -> bool:
        """Send SIGTERM to the process, unless it has released the lock meanwhile. Returns whether it was sent."""
        if not self.is_here or self.pid is None:
            return False
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            # From here on the number cannot come to mean another process.
            if holder_here(directory.lock) != self.pid:
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except ProcessLookupError:
            return False
        finally:
            os.close(process)
        return True


@contextmanager
def locked(directory: RunDirectory, *, wait_s: float = LOOK_S) -> Iterator[None]:
    """Hold the run directory against a second supervisor. The lock goes with the process, however it ends.

    Raises:
        UsageError: another one holds it, also after `wait_s`; or the folder is not a run directory, or has links in it.
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
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, lock)
        lock.flush()
        yield


def holder_of(directory: RunDirectory) -> Holder | None:
    """Returns who supervises the run, or None if the lock is free, whatever its file says."""
    return _holder(directory) if is_held(directory.lock) else None


def _holder(directory: RunDirectory) -> Holder:
    if (pid := holder_here(directory.lock)) is not None:
        return Holder(socket.gethostname(), pid, is_here=True)
    with suppress(
        FileNotFoundError, DamagedFileError
    ):  # it has not been written yet, or somebody else wrote it
        said = read_json(directory.lock, {"host": str, "pid": POSITIVE}, most_bytes=SAID_BYTES)
        return Holder(said["host"], said["pid"], is_here=False)
    return Holder("", None, is_here=False)
