"""Averages of the weights over the tokens of a run."""

import math

EMA = "ema"
KINDS = (EMA,)
"""Averages that a run may keep: settings of the section `average`."""
EMA_KEY = f"average.{EMA}"


def ema_share(tokens: int, *, half_life_tokens: int) -> float:
    """Returns the share of an exponential moving average that some tokens replace.

    The rest, which stays, is 0.5 to the power of `tokens / half_life_tokens`. So a step of many
    tokens moves the average as far as several steps of the same tokens and weights would.
    """
    return -math.expm1(-math.log(2) * tokens / half_life_tokens)
