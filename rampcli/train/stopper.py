"""Stops that all ranks agree on, so that they leave a step at the same point."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rampcli.train.passes import Passes
from rampcli.train.stopping import StopRequest


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
    passes: Passes

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
