"""Losses of several models on the same samples: differences, standard errors, critical batch.

Samples are in groups. A group is the sum of its losses in nats and the number of its tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Groups = Sequence[tuple[float, float]]
TOLERANCE = 0.01
"""Difference in nats per token that counts as none (arXiv 2505.23971, section 3)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of two losses in nats per token, and its standard error.

    The standard error is None if there are fewer than two groups.
    """

    mean: float
    standard_error: float | None

    @property
    def is_worse(self) -> bool:
        """Whether it is above the tolerance, which is two standard errors at least."""
        return self.mean > max(TOLERANCE, 2 * (self.standard_error or 0.0))


def mean_loss(groups: Groups) -> float:
    """Returns the mean loss in nats per token."""
    return sum(loss for loss, _ in groups) / sum(tokens for _, tokens in groups)


def difference(groups: Groups, others: Groups) -> Difference:
    """Returns the loss of `groups` minus that of `others`, which have the same samples.

    The standard error is that of a ratio of two means over groups.

    Raises:
        ValueError: the samples are not the same.
    """
    if [tokens for _, tokens in groups] != [tokens for _, tokens in others]:
        raise ValueError("the losses are not of the same samples")
    return _mean([(a - b, tokens) for (a, tokens), (b, _) in zip(groups, others, strict=True)])


def _mean(groups: Groups) -> Difference:
    """Returns the mean of groups, and its standard error."""
    mean, number = mean_loss(groups), len(groups)
    if number < 2:
        return Difference(mean, None)
    squares = sum((loss - mean * tokens) ** 2 for loss, tokens in groups)
    tokens = sum(tokens for _, tokens in groups)
    return Difference(mean, math.sqrt(number / (number - 1) * squares) / tokens)


def unpaired_standard_error(groups: Groups, others: Groups) -> float | None:
    """Returns the standard error of the difference if the samples were not the same."""
    errors = [_mean(each).standard_error for each in (groups, others)]
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None


def critical_multiple(groups: Mapping[int, Groups]) -> int:
    """Returns the largest multiple whose loss is not worse than that of any smaller one.

    Args:
        groups: losses by multiple of the batch.
    """
    return max(
        multiple
        for multiple, of_multiple in groups.items()
        if not any(
            difference(of_multiple, groups[smaller]).is_worse
            for smaller in groups
            if smaller < multiple
        )
    )
