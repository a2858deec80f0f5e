"""Turns rewards into advantages, as in GRPO (arXiv 2402.03300) and Dr. GRPO (arXiv 2503.20783)."""

import math
from typing import Literal

import torch
from torch import Tensor

Scale = Literal["none", "group", "batch"]

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""


def group_advantages(rewards: Tensor, *, scale: Scale, batch_std: float | None = None) -> Tensor:
    """Returns how much better each response is than the mean of its group, fp32.

    NaN marks a response without a reward. It does not count in any mean or deviation, and its
    advantage is 0. Equal rewards in a group give advantages of exactly 0.

    Args:
        rewards: float64 [groups, generations], finite or NaN. A group holds the responses to one
            prompt.
        scale: "group" divides by the standard deviation within the group, "batch" by the
            deviation of all rewards. If only one reward is known, the advantage is 0.
        batch_std: for "batch": the result of the function `batch_std` for the rewards of all ranks.

    Raises:
        ValueError: `batch_std` is missing or unused.
    """
    if (scale == "batch") != (batch_std is not None):
        raise ValueError(f"{scale=} and {batch_std=} do not fit together")
    # Subtract the lowest reward first, so that equal rewards give exactly 0.
    lowest = rewards.nan_to_num(nan=math.inf).amin(dim=1, keepdim=True)
    distances = rewards - lowest
    advantages = distances - distances.nanmean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (_std(distances) + EPSILON)
    elif batch_std is not None:
        advantages = advantages / (batch_std + EPSILON)
    return advantages.nan_to_num(nan=0.0).float()


def batch_std(rewards: Tensor) -> float:
    """Returns the standard deviation of all rewards that are not NaN.

    The result is unbiased. It is NaN if there are fewer than two rewards.

    Args:
        rewards: float64, any shape, finite or NaN. The rewards of all ranks.
    """
    return _std(rewards.reshape(1, -1)).item()


def _std(rewards: Tensor) -> Tensor:
    """Returns the unbiased standard deviation of each row without NaN, [rows, 1]."""
    counts = (~rewards.isnan()).sum(dim=1, keepdim=True)
    deviations = rewards - rewards.nanmean(dim=1, keepdim=True)
    squares = deviations.square().nansum(dim=1, keepdim=True)
    return torch.where(counts > 1, squares / (counts - 1), math.nan).sqrt()
