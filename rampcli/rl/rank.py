"""Runs one rank of reinforcement learning. Takes the arguments of `python -m rampcli.worker`."""

from collections.abc import Callable
from typing import NoReturn

from rampcli.launch.workers import RL_WORKER
from rampcli.worker.__main__ import main


def import_training() -> Callable[..., NoReturn]:
    """Imports torch and all that training needs, and returns the function that trains."""
    from rampcli.rl.assemble import train_and_leave

    return train_and_leave


if __name__ == "__main__":
    main(import_training, program=RL_WORKER)
