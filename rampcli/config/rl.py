"""What reinforcement learning changes about a configuration."""

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.layers import sources_named
from rampcli.config.schema import Config
from rampcli.errors import UsageError

RESPONSE_KEY = "rl.max_response_tokens"
ROLLOUT_KEY = "rl.rollout_ranks"


def is_rl(config: Config) -> bool:
    """Returns whether a run is one of reinforcement learning."""
    return config.rl.generations_per_prompt is not None


def unit_of(config: Config) -> str:
    """Returns what the samples of a run are: prompts in reinforcement learning."""
    return "prompts" if is_rl(config) else "samples"


def max_response_tokens(config: Config) -> int:
    """Returns the length of the longest response in tokens, its end included."""
    return config.rl.max_response_tokens or config.data.sequence_length // 2


def refuse_rl(config: Config, message: str, *, remedy: str) -> None:
    """Refuses a run of reinforcement learning, for commands that take pretraining only.

    Raises:
        UsageError: the run is one; the message and the remedy say what the command wants.
    """
    if is_rl(config):
        with sources_named(config):
            raise UsageError(message, keys=(GENERATIONS_KEY,), remedy=remedy)


def rl_notes(config: Config) -> tuple[str, ...]:
    """Returns what a user may not expect of reinforcement learning."""
    if not is_rl(config) or config.model.init_from is not None:
        return ()
    return ("training starts from random weights: model.init_from=RUN_DIR starts from a run",)
