"""Processes that end with their parent, and the signals that ask them to stop."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

SUPERVISOR = "RAMPCLI_SUPERVISOR"
"""Environment variable of workers: ID of the process that supervises them."""
LISTENER = "RAMPCLI_LISTENER"
"""Environment variable of rank 0: descriptor of the socket on which it listens for the others."""
WAIT = "--wait"
"""Option that makes a worker wait until it is told to train."""
SAME_SIGNAL_S = 0.5
"""Signals within this many seconds count as one request: launchers may send a signal both to a
process and to its group."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends. Does nothing outside Linux."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Does the same in a process that `parent` has just forked.

    The process exits at once if the parent has already ended.
    """
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def signal_name(number: int) -> str:
    """Returns the name of a signal, for example SIGKILL. Real-time signals only have numbers."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


@dataclass(slots=True)
class StopSignals:
    """The stop signals received so far.

    Attributes:
        signal: number of the first one, or None.
        at_once: True once a second one has arrived: stop without saving.
    """

    signal: int | None = None
    at_once: bool = False
    _came_at: float = 0.0

    def note(self, number: int, _frame: object = None) -> None:
        """Records a signal. This is a signal handler."""
        if self.signal is None:
            self.signal, self._came_at = number, time.monotonic()
        elif time.monotonic() - self._came_at > SAME_SIGNAL_S:
            self.at_once = True
