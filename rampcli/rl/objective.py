"""Advantages, the policy-gradient loss with a clipped ratio, and the sums that its metrics need.

GRPO (arXiv 2402.03300) and its variants DAPO (arXiv 2503.14476), Dr. GRPO (arXiv 2503.20783) and
GSPO (arXiv 2507.18071).
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rampcli.data.loader import MicroBatch
from rampcli.settings.rl import RLConfig

Scale = Literal["none", "group", "batch"]
EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyBatch(MicroBatch):
    """Prompts with their responses, for one forward and backward pass.

    Attributes:
        tokens: int64 [pairs, length]: each prompt, its response, then padding.
        labels: int64 [pairs, length]: the next token if it belongs to the response, its stop token
            included, else IGNORED.
        advantages: fp32 [pairs].
        old_log_probs: log-probabilities of the labels under the policy that generated them, fp32
            [pairs, length].
        is_first_update: the policy is still the one that generated, so all ratios are 1.
        reference_log_probs: log-probabilities of the labels under the starting weights, or None.
    """

    advantages: Tensor
    old_log_probs: Tensor
    is_first_update: bool
    reference_log_probs: Tensor | None = None


class PolicySums(NamedTuple):
    """Sums for metrics. The sums of several passes and ranks can be added.

    Attributes:
        pairs: number of pairs with a response.
        ratios: number of ratios: one for each token, or one for each pair.
        ratio: sum of the ratios of the present policy to the old one.
        clipped: number of ratios whose gradient is zero because of the clipping.
        old_kl: estimate of KL(old, present), summed over tokens. In the first update, the weights
            are the same, and it shows how differently sampling and training round.
        reference_kl: estimate of KL(present, reference), summed over tokens; 0 without a reference.
        entropy: sum of the entropies in nats over tokens.
    """

    pairs: float
    tokens: float
    ratios: float
    ratio: float
    clipped: float
    old_kl: float
    reference_kl: float
    entropy: float

    def means(self) -> dict[str, float]:
        """Returns the mean ratio, the clipped share of ratios, and the other means per token."""
        ratios, tokens = max(1.0, self.ratios), max(1.0, self.tokens)
        return {
            "ratio": self.ratio / ratios,
            "clipped": self.clipped / ratios,
            "old_kl": self.old_kl / tokens,
            "reference_kl": self.reference_kl / tokens,
            "entropy": self.entropy / tokens,
        }


@dataclass(frozen=True, slots=True)
class Objective:
    """The clipped loss of an update, as a sum over passes and a denominator.

    Attributes:
        rl: its settings from `clip_low` to `kl_correction`. In the first update, the gradient of a
            corrected divergence follows KL(present, reference). Without the correction, it follows
            KL(reference, present).
        max_response_tokens: length of the longest possible response.
    """

    rl: RLConfig
    max_response_tokens: int

    def __call__(
        self, log_probs: Tensor, entropy: Tensor, batch: PolicyBatch
    ) -> tuple[Tensor, Tensor]:
        """Returns the summed loss of a pass, and its `PolicySums` as a float64 vector.

        The loss of an update is this sum over all passes and ranks, divided by `denominator`. The
        gradient therefore does not depend on how the pairs are split into passes. A pair must not
        be split over ranks.

        Args:
            log_probs: log-probabilities of the labels under the present policy, fp32
                [pairs, length].
            entropy: entropies of the distributions, without gradient, fp32 [pairs, length].
            batch: the pairs. Values at ignored labels do not matter.

        Raises:
            ValueError: the loss needs a reference, and the batch has none.
        """
        counted = batch.labels >= 0
        advantages = batch.advantages[:, None]
        changes = torch.where(counted, log_probs - batch.old_log_probs, 0.0)
        log_ratios = changes
        if batch.is_first_update:
            log_ratios = torch.where(counted, log_probs - log_probs.detach(), 0.0)
        ratios, has_ratio = self._ratios(log_ratios, counted)
        bounded = ratios.clamp(1 - self.rl.clip_low, 1 + self.rl.clip_high)
        losses = -torch.minimum(ratios * advantages, bounded * advantages)
        reference_kl = self._reference_kl(log_probs, counted, batch.reference_log_probs)
        weight = self.rl.kl_weight * (ratios if self.rl.kl_correction else 1.0)
        losses = torch.where(counted, losses + weight * reference_kl, 0.0)
        if self.rl.average == "sequences":
            losses = losses / counted.sum(dim=1, keepdim=True).clamp(min=1)
        # The lower product counts. The bounded one has no gradient where it is lower.
        is_clipped = bounded * advantages < ratios * advantages
        sums = {
            "pairs": counted.any(dim=1),
            "tokens": counted,
            "ratios": has_ratio,
            "ratio": ratios * has_ratio,
            "clipped": is_clipped & has_ratio,
            "old_kl": _k3(changes),
            "reference_kl": reference_kl,
            "entropy": torch.where(counted, entropy, 0.0),
        }
        vector = [sums[name].detach().sum(dtype=torch.float64) for name in PolicySums._fields]
        return losses.sum(), torch.stack(vector)

    def denominator(self, *, pairs: int, tokens: int) -> float:
        """Returns the divisor of the summed loss of an update.

        Args:
            pairs: pairs of the update that have a response, over all passes and ranks.
            tokens: their response tokens.
        """
        counts = {
            "tokens": tokens,
            "sequences": pairs,
            "length": pairs * self.max_response_tokens,
        }
        return float(max(1, counts[self.rl.average]))

    def _ratios(self, log_ratios: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the ratios and which of them exist: [pairs, length], or [pairs, 1]."""
        if self.rl.ratio == "token":
            return log_ratios.exp(), counted
        lengths = counted.sum(dim=1, keepdim=True)
        return (log_ratios.sum(dim=1, keepdim=True) / lengths.clamp(min=1)).exp(), lengths > 0

    def _reference_kl(self, log_probs: Tensor, counted: Tensor, reference: Tensor | None) -> Tensor:
        """Returns the estimate of KL(present, reference) at each token; 0 without a reference."""
        if reference is not None:
            return _k3(torch.where(counted, reference - log_probs, 0.0))
        if self.rl.kl_weight > 0:
            raise ValueError("a loss with a kl_weight needs reference_log_probs")
        return torch.zeros_like(log_probs)


def _k3(log_ratio: Tensor) -> Tensor:
    """Estimates KL(p, q) from log(q / p) of samples from p.

    It is unbiased and never negative (Schulman, "Approximating KL Divergence", 2020).
    """
    return log_ratio.expm1() - log_ratio


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
