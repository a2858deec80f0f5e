"""The signals that ask a run to stop."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rampcli.lifeline import SAME_SIGNAL_S

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


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


@contextmanager
def noting_stop_signals() -> Iterator[StopSignals]:
    """Note them instead of dying of them; one that is ignored, as SIGHUP under nohup, stays so."""
    signals = StopSignals()
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signals.note)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
