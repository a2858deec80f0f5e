"""Processes that end with their parent, signals that ask to stop, and programs as children."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED, EXIT_TERMINATED, RampcliError
from rampcli.machine.interpreter import python_command, safe_environment

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
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when its parent ends: by default, to kill it.

    Does nothing outside Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, number)


def die_with(parent: int) -> None:
    """Has this process, which `parent` has just forked, killed when its parent ends.

    It exits at once if the parent has already ended.
    """
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def fork_under_guard(parent: int, descriptors: Sequence[int]) -> None:
    """Forks a child, and returns in the child only.

    The calling process stays as a guard, which no stop signal ends. It exits as the child exits. If
    `parent` ends first, the guard kills its process group: itself, the child, and the processes
    that the child has started, unless they have left the group.

    Args:
        parent: process that started the calling one, as the leader of a new session.
        descriptors: open files of the child, which the guard closes.
    """
    guard = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    die_with_parent(signal.SIGTERM)
    child = os.fork()
    if child == 0:
        die_with(guard)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        if os.getppid() != parent:
            os.killpg(guard, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _exit_as(os.waitstatus_to_exitcode(status))
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM})


def _exit_as(code: int) -> NoReturn:
    """Exits with a code. A negative one is a signal, of which this process dies."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)


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


@contextmanager
def catch_stop_signals(shared: StopSignals | None = None) -> Iterator[StopSignals]:
    """Collects stop signals in the block, instead of letting them end the process.

    Signals that are ignored stay ignored, as SIGHUP is under nohup. Python handles signals in the
    main thread alone: in another thread, the block collects only what is noted in the result. A
    block inside another one shares its result, so that no signal between two runs is lost.

    Args:
        shared: what a block of the main thread collects. Then this block shares it.
    """
    if shared is not None:
        yield shared
        return
    signals = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    outer = getattr(before[signal.SIGTERM], "__self__", None)
    if isinstance(outer, StopSignals):
        yield outer
        return
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signals.note)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code_after(signals: StopSignals) -> int:
    """Returns the exit code of a command that has stopped in an orderly way: 0 without a signal."""
    if signals.signal is None:
        return 0
    return EXIT_CTRL_C if signals.signal == signal.SIGINT else EXIT_INTERRUPTED


def run_program(module: str, arguments: Sequence[str]) -> int:
    """Runs a module in a child process that prints to this terminal, and returns its exit code.

    SIGTERM is passed on to the child, so that it can remove unfinished files.

    Raises:
        RampcliError: another signal killed the child.
    """
    process = subprocess.Popen(python_command(module, *arguments), env=safe_environment())
    before = signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal sent SIGINT to the child as well
        process.wait()
        return EXIT_CTRL_C
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == -signal.SIGTERM:  # the child had not installed its handler yet
        return EXIT_TERMINATED
    if code < 0:
        raise RampcliError(
            f"{module} was killed by {signal_name(-code)}",
            remedy="more memory, if the kernel sent SIGKILL because memory ran out",
        )
    return code
