"""Processes that must not outlive those that started them, and how they are asked to end."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

SUPERVISOR = "RAMPCLI_SUPERVISOR"
"""The variable that names the process that supervises the workers, in their environment."""
LISTENER = "RAMPCLI_LISTENER"
"""The variable that gives rank 0 the descriptor of the socket where the others expect it."""
WAIT = "--wait"
"""The word that lets a worker wait for its turn."""
SAME_SIGNAL_S = 0.5
"""A signal that comes again so soon is the same request, on another way: programs between pass it on to a process and to its group."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Linux: have this process killed when its parent ends, however the parent ends. Elsewhere there is no such request."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """The same for a process that was just forked by `parent`, which may have ended before it could be said."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def signal_name(number: int) -> str:
    """Returns the name of a signal, SIGKILL for example. Real-time signals have only numbers."""
    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


@dataclass(slots=True)
class StopSignals:
    """What was asked for by signals so far.

    Attributes:
        signal: the first one; None until it comes.
        at_once: whether there was a second one.
    """

    signal: int | None = None
    at_once: bool = False
    _came_at: float = 0.0

    def note(self, number: int, _frame: object = None) -> None:
        """A signal came."""
        if self.signal is None:
            self.signal, self._came_at = number, time.monotonic()
        elif time.monotonic() - self._came_at > SAME_SIGNAL_S:
            self.at_once = True
