"""The signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED
from rampcli.machine.lifeline import StopSignals

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


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
