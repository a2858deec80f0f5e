"""One supervisor for a run directory."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rampcli.errors import UsageError
from rampcli.locks import hold, is_held
from rampcli.run_directory import RunDirectory

LOOK_S = 0.2
"""Who looks whether a run is held holds it for a moment."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that supervises a run."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def locked(directory: RunDirectory, *, wait_s: float = LOOK_S) -> Iterator[None]:
    """Hold the run directory against a second supervisor; the lock goes with the process, however it ends.

    Raises:
        UsageError: another one holds it, also after `wait_s`.
    """
    directory.claim()
    try:
        lock = hold(directory.lock, wait_s=wait_s)
    except BlockingIOError as error:
        holder = _written(directory)
        by = "" if holder is None else f" ({holder})"
        raise UsageError(f"{directory.path} is in use by another rampcli{by}", remedy="another name= or run_dir=") from error
    with lock:
        lock.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, lock)
        lock.flush()
        yield


def holder_of(directory: RunDirectory) -> Holder | None:
    """Who supervises the run; None where nobody does."""
    return _written(directory) if is_held(directory.lock) else None


def _written(directory: RunDirectory) -> Holder | None:
    with suppress(OSError, ValueError):  # it has not been written yet
        return Holder(**json.loads(directory.lock.read_text(encoding="utf-8")))
    return None
