"""A process that must not outlive the one that started it."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Linux: have this process killed when its parent ends, however the parent ends. Elsewhere there is no such request."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
