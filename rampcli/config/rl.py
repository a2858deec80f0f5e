"""Refuses reinforcement learning where only pretraining is meant."""

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.layers import sources_named
from rampcli.errors import UsageError
from rampcli.settings.config import Config
from rampcli.settings.rl import is_rl


def refuse_rl(config: Config, message: str, *, remedy: str) -> None:
    """Refuses a run of reinforcement learning, for commands that take pretraining only.

    Raises:
        UsageError: the run is one; the message and the remedy say what the command wants.
    """
    if is_rl(config):
        with sources_named(config):
            raise UsageError(message, keys=(GENERATIONS_KEY,), remedy=remedy)
