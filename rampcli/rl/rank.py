"""Runs one rank of reinforcement learning. Takes the arguments of `python -m rampcli.worker`."""

from collections.abc import Callable

from rampcli.launch.workers import RL_WORKER
from rampcli.worker.__main__ import main


def import_training() -> Callable[..., int]:
    """Imports torch and all that training needs, and returns the function that trains."""
    from rampcli.rl.assemble import train_or_generate

    return train_or_generate


if __name__ == "__main__":
    main(import_training, program=RL_WORKER)
