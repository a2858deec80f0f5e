"""Averages of the weights over the tokens or the checkpoints of a run."""

import math
from dataclasses import dataclass

from rampcli.batch.position import Goal, parse_goal
from rampcli.batch.quantities import parse_whole
from rampcli.errors import UsageError, set_to

EMA, MERGE = "ema", "merge"
AVERAGES = (EMA, MERGE)
"""Averages of a run: settings of the section `average`."""
EMA_KEY, MERGE_KEY = f"average.{EMA}", f"average.{MERGE}"
LAST = "last:"
"""Prefix of a number of checkpoints."""
FROM = "from:"
"""Prefix of a position in the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExponentialMean:
    """A moving average that forgets by tokens: what a weight counts halves in a half-life."""

    half_life_tokens: int

    def has_begun(self, _tokens: int) -> bool:
        """Returns whether the average has a value: always. It begins as the weights do."""
        return True

    def share(self, begin: int, end: int) -> float:
        """Returns the share that the weights after a step take.

        The rest, which stays, is 0.5 to the power of `tokens / half_life_tokens`. So a step of many
        tokens moves the average as far as several steps of the same tokens and weights would.

        Args:
            begin: tokens of the run before the step.
            end: tokens of the run after the step.
        """
        return -math.expm1(-math.log(2) * (end - begin) / self.half_life_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformMean:
    """The mean of the weights after each step, each by its step's tokens after a position.

    Attributes:
        first_token: tokens of the run before that position.
    """

    first_token: int

    def has_begun(self, tokens: int) -> bool:
        """Returns whether a step has ended after the position, by the tokens of the run."""
        return tokens > self.first_token

    def share(self, begin: int, end: int) -> float:
        """Returns the share that the weights after a step take, as `ExponentialMean.share` does.

        It is 0 before the position, and 1 for the first step that ends after it. It does not
        depend on earlier calls, so a resumed run goes on exactly.
        """
        counted = end - max(begin, self.first_token)
        return counted / (end - self.first_token) if counted > 0 else 0.0


AverageRule = ExponentialMean | UniformMean
"""How an average follows the weights."""


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
        wanted = f"`{LAST}` and a number of checkpoints from 2 on"
        if name == MERGE_KEY:
            raise UsageError(
                f"{name}={text} is not {wanted}, or `{FROM}` and a position",
                keys=(name,),
                remedy=set_to(name, f"{LAST}2", f"{FROM}7.5T"),
            )
        raise UsageError(f"{name} {text} is not {wanted}", remedy=f"{name} {LAST}2")
    return number


def merge_start(text: str | None) -> Goal | None:
    """Returns the position from which `average.merge` averages; None if it has none.

    Raises:
        UsageError: what follows `from:` is not a position.
    """
    if text is None or not text.strip().startswith(FROM):
        return None
    return parse_goal(text.strip().removeprefix(FROM), key=MERGE_KEY, prefix=FROM)
