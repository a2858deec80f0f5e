"""Lets ranks stand still, and clocks nearly, until a test goes on, however late that is."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from processes import DEADLINE_S, wait_until

LONG_S = 1e6
"""Longer than any deadline."""
SLOWNESS = 100
"""Seconds in which a slow clock advances by one second."""


def stand_still_before(steps: Collection[int], folder: str) -> None:
    """Lets the ranks that train stand still before steps, for the `prepare` of a command.

    They go on once `let_go` was called, or once they are asked to stop.

    Args:
        steps: numbers of the steps, from 1.
        folder: of the test.
    """
    from rampcli.train.loop import Trainer

    agree_on_tokens = Trainer._agree_on_tokens  # begins a step

    def called(trainer: Trainer, valid_tokens: int) -> int:
        step = trainer.state.step + 1
        if step in steps:
            request, may_go = trainer.stopper.request, _may_go(step, folder)
            stand_still_until(lambda: request.asked or may_go.exists())
        return agree_on_tokens(trainer, valid_tokens)

    Trainer._agree_on_tokens = called


def let_go(step: int, folder: str | Path) -> None:
    """Lets ranks take a step that they stand still before, now or later."""
    _may_go(step, folder).touch()


def _may_go(step: int, folder: str | Path) -> Path:
    return Path(folder, f"may_take_step_{step}")


def stand_still_until(may_go: Callable[[], bool]) -> None:
    """Returns once a function returns True.

    Raises:
        AssertionError: it has not after `DEADLINE_S`. The test has failed or was killed.
    """
    wait_until(may_go, deadline_s=DEADLINE_S)


def slow_clock(file: str | Path) -> SimpleNamespace:
    """Returns a stand-in for the module `time`, whose clock is `SLOWNESS` times slower.

    A busy machine reaches no deadline by it, and waiting with a deadline still ends. Each time
    `file` is created, the clock jumps by `LONG_S` and removes it. Only `monotonic` exists.
    """
    jumped_s = 0.0

    def monotonic() -> float:
        nonlocal jumped_s
        with suppress(FileNotFoundError):
            Path(file).unlink()
            jumped_s += LONG_S
        return time.monotonic() / SLOWNESS + jumped_s

    return SimpleNamespace(monotonic=monotonic)
