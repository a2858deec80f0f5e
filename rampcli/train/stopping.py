"""How ranks that train are asked to stop, and stop together."""

import os
import signal

from rampcli.lifeline import StopSignals

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ASK_EVERY_S = 1.0
"""How long ranks go on within a step before they ask each other again, about."""


class StopAgreed(Exception):  # nothing is wrong
    """All ranks have learnt, at the same point, that one of them was asked to stop."""


class StopRequest:
    """Set by a signal on any rank."""

    def __init__(self, *, a_second_signal_ends: bool = True) -> None:
        """Without `a_second_signal_ends`, later signals say nothing new: who supervises passes on, and kills, what it wants to."""
        self.a_second_signal_ends = a_second_signal_ends
        self._signals = StopSignals()
        self._micro_batches_between = 1
        self._micro_batches = 0

    @property
    def asked(self) -> bool:
        """Whether this rank was."""
        return self._signals.signal is not None

    def listen(self) -> None:
        """Let signals ask from now on."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.note(number)
        if self._signals.at_once and self.a_second_signal_ends:
            os._exit(1)

    def expect(self, micro_batch_s: float) -> None:
        """Take note of how long a micro batch takes; every rank is told the same."""
        self._micro_batches_between = (
            max(1, round(ASK_EVERY_S / micro_batch_s)) if micro_batch_s > 0 else 1
        )

    def is_time_to_ask(self) -> bool:
        """Whether the ranks are to ask each other now. Every rank calls this between any two of its micro batches."""
        self._micro_batches += 1
        if self._micro_batches < self._micro_batches_between:
            return False
        self._micro_batches = 0
        return True
