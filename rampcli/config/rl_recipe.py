"""Makes the run of a recipe one of reinforcement learning."""

from pathlib import Path

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.compose import apply_overrides
from rampcli.config.groups import option_names
from rampcli.config.layers import Entry, Layer, Precedence, Stack
from rampcli.config.schema import Config
from rampcli.words.rl import RL_COMMAND

DEFAULT_RL = "grpo"
"""Option of the group `rl` for recipes without one of their own."""


def rl_word(recipe: str, *, config_dir: Path | None = None) -> str:
    """Returns the word that makes a recipe's run one of reinforcement learning.

    It chooses the option of the group `rl` that has the recipe's name, or `rl=grpo`.
    """
    return f"rl={recipe if recipe in option_names('rl', config_dir) else DEFAULT_RL}"


def with_own_name(stack: Stack) -> Stack:
    """Returns the layers with another name in reinforcement learning than in pretraining.

    So the run directory is another one, too. A name that the user chooses stays.
    """
    if stack.entry(GENERATIONS_KEY).value is None or stack.precedence("name") > Precedence.RECIPE:
        return stack
    name = Entry(f"{stack.entry('name').value}_rl", RL_COMMAND)
    return stack.above(Layer(RL_COMMAND, Precedence.RECIPE, {"name": name}))


def with_rl(config: Config, recipe: str) -> Config:
    """Returns the configuration that `rampcli rl` makes of a recipe.

    Args:
        config: as the recipe returned it.
        recipe: name of the recipe.
    """
    return with_own_name(apply_overrides(config, [rl_word(recipe)], place=RL_COMMAND)).config()
