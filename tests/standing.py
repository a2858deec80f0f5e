"""Lets ranks and clocks stand still until a test goes on, however late that is."""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from processes import LOOK_EVERY_S

LONG_S = 1e6
"""Longer than any deadline."""


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
    """Lets ranks go on that stand still before a step, or will."""
    _may_go(step, folder).touch()


def _may_go(step: int, folder: str | Path) -> Path:
    return Path(folder, f"may_take_step_{step}")


def stand_still_until(may_go: Callable[[], bool]) -> None:
    """Returns once a function returns True."""
    while not may_go():
        time.sleep(LOOK_EVERY_S)


def standing_clock(file: str | Path) -> SimpleNamespace:
    """Returns a stand-in for the module `time`, whose monotonic clock stands still.

    Whenever there is a file, the clock removes it and jumps ahead, so that all deadlines pass.
    """
    now_s = 0.0

    def monotonic() -> float:
        nonlocal now_s
        with suppress(FileNotFoundError):
            Path(file).unlink()
            now_s += LONG_S
        return now_s

    return SimpleNamespace(monotonic=monotonic)
