"""Stops within a rollout: a rank that was asked to stop ends its own, then all ranks agree."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rampcli.train.stopping import StopRequest


class _Asked(Exception):
    """Raised within a rollout on a rank that was asked to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stops:
    """Ends rollouts when a rank is asked to stop.

    Signals reach ranks at different times. A rank that was asked ends its own rollout and continues
    to the next collective call. There, all ranks leave the step.

    Attributes:
        request: whether this rank was asked.
        between: called between rollouts, as often on every rank. It raises StopAgreed on every rank
            if one of them was asked and it is time to exchange that.
        agree: called on every rank after its last rollout. It raises StopAgreed on every rank if
            one of them was asked.
    """

    request: StopRequest
    between: Callable[[], None]
    agree: Callable[[], None]

    @contextmanager
    def ending_early(self) -> Iterator[Callable[[], None]]:
        """Yields a function that ends the block if this rank was asked to stop."""
        with suppress(_Asked):
            yield self._check

    def _check(self) -> None:
        if self.request.asked:
            raise _Asked
