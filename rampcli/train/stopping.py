"""Stop requests: signals that ask this rank to stop. Needs no torch."""

import os
import signal

from rampcli.machine.lifeline import StopSignals

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ASK_EVERY_S = 1.0
"""About how often ranks ask each other during a step, in seconds."""


class StopRequest:
    """Signals that asked this rank to stop, and when it is time to ask the other ranks.

    Args:
        exits_at_second_signal: whether a second signal ends the process at once. Pass False under a
            supervisor, because it repeats signals and kills workers itself.
    """

    def __init__(self, *, exits_at_second_signal: bool = True) -> None:
        self.exits_at_second_signal = exits_at_second_signal
        self._signals = StopSignals()
        self._micro_batches_between = 1
        self._micro_batches = 0

    @property
    def asked(self) -> bool:
        """Whether this rank was asked to stop."""
        return self._signals.signal is not None

    def listen(self) -> None:
        """Starts to handle the stop signals."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.note(number)
        if self._signals.at_once and self.exits_at_second_signal:
            os._exit(1)

    def expect(self, micro_batch_s: float) -> None:
        """Sets the expected seconds per micro batch, which must be the same on all ranks."""
        self._micro_batches_between = (
            max(1, round(ASK_EVERY_S / micro_batch_s)) if micro_batch_s > 0 else 1
        )

    def is_time_to_ask(self) -> bool:
        """Returns whether the ranks must ask each other now.

        Every rank calls this between any two of its micro batches, so all ranks get the same
        answer.
        """
        self._micro_batches += 1
        if self._micro_batches < self._micro_batches_between:
            return False
        self._micro_batches = 0
        return True
