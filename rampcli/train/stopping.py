"""Stops: signals that ask this rank to stop, and the point where all ranks do. Needs no torch."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rampcli.machine.lifeline import StopSignals

if TYPE_CHECKING:
    from rampcli.train.passes import Passes

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


class StopAgreed(Exception):
    """Raised on all ranks at the same point, after one of them was asked to stop."""


class _Asked(Exception):
    """Raised on a rank that was asked to stop, to leave the block of `Stopper.ending_early`."""


@dataclass(frozen=True, slots=True)
class Stopper:
    """Stops all ranks at the same point after one of them was asked to stop.

    Attributes:
        request: whether this rank was asked.
        passes: passes of the ranks that agree.
    """

    request: StopRequest
    passes: "Passes"

    def agree(self) -> None:
        """Asks all ranks whether one of them must stop. Every rank calls this.

        Raises:
            StopAgreed: one of them must.
        """
        (requests,) = self.passes.sum_over_ranks([self.request.asked])
        if requests:
            raise StopAgreed

    def agree_now_and_then(self) -> None:
        """Calls `agree` about once a second. Every rank calls this between two micro batches."""
        if self.request.is_time_to_ask():
            self.agree()

    @contextmanager
    def ending_early(self) -> Iterator[Callable[[], None]]:
        """Yields a function that ends the block if this rank was asked to stop.

        Signals reach ranks at different times. A rank that was asked leaves the block and continues
        to the next `agree`, where all ranks leave the step.
        """

        def check() -> None:
            if self.request.asked:
                raise _Asked

        with suppress(_Asked):
            yield check
