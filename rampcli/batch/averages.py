"""Averages of the weights over the tokens or the checkpoints of a run."""

import math

from rampcli.batch.quantities import parse_whole
from rampcli.errors import UsageError, set_to

EMA, MERGE = "ema", "merge"
KINDS = (EMA, MERGE)
"""Averages of a run: settings of the section `average`."""
EMA_KEY, MERGE_KEY = f"average.{EMA}", f"average.{MERGE}"
LAST = "last:"
"""Prefix of a number of checkpoints."""


def ema_share(tokens: int, *, half_life_tokens: int) -> float:
    """Returns the share of an exponential moving average that some tokens replace.

    The rest, which stays, is 0.5 to the power of `tokens / half_life_tokens`. So a step of many
    tokens moves the average as far as several steps of the same tokens and weights would.
    """
    return -math.expm1(-math.log(2) * tokens / half_life_tokens)


def is_merge(text: str) -> bool:
    """Returns whether a text begins as a mean of checkpoints does."""
    return text.strip().startswith(LAST)


def merged_checkpoints(text: str, *, name: str = MERGE_KEY) -> int:
    """Returns the number of checkpoints in a mean, such as 8 of `last:8`.

    Args:
        name: setting or option that has the text.

    Raises:
        UsageError: it has another form, or is not a mean of several checkpoints.
    """
    number = parse_whole(text.strip().removeprefix(LAST)) or 0
    if number < 2 or not is_merge(text):
        is_key = name == MERGE_KEY
        raise UsageError(
            f"{name}{'=' if is_key else ' '}{text} is not `{LAST}` and a number of checkpoints from"
            " 2 on",
            keys=(name,) if is_key else (),
            remedy=set_to(name, f"{LAST}2") if is_key else f"{name} {LAST}2",
        )
    return number
