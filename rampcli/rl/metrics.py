"""What a step of reinforcement learning records."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from math import inf, isfinite, sqrt

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.rl.objective import PolicySums
from rampcli.rl.rollout import Rollout

SOLVED = 1.0
"""A pair with at least this reward counts as solved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSums:
    """Sums over rollouts.

    Attributes:
        pairs: number of pairs.
        scored: pairs that have a reward.
        reward: sum of their rewards.
        squares: sum of the squares of their rewards.
        solved: pairs whose reward is at least `SOLVED`.
        flat_groups: groups whose rewards are all the same, which have no gradient.
        groups: number of groups.
        response_tokens: tokens of the responses.
        tokens: tokens of the prompts of all pairs, and of the responses.
        cut: responses that have reached the longest length.
        best: largest reward; -inf without one.
    """

    pairs: float
    scored: float
    reward: float
    squares: float
    solved: float
    flat_groups: float
    groups: float
    response_tokens: float
    tokens: float
    cut: float
    best: float

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> "RolloutSums":
        """Returns the sums over some rollouts with the same number of generations."""
        rewards = torch.cat([rollout.rewards for rollout in rollouts])
        lengths = torch.cat([rollout.lengths.cpu() for rollout in rollouts])
        scored = rewards[~rewards.isnan()]
        lowest = rewards.nan_to_num(nan=inf).amin(dim=1)
        highest = rewards.nan_to_num(nan=-inf).amax(dim=1)
        prompts = sum(len(prompt) for rollout in rollouts for prompt in rollout.prompts)
        longest = rollouts[0].tokens.shape[1]
        return cls(
            pairs=rewards.numel(),
            scored=len(scored),
            reward=float(scored.sum()),
            squares=float(scored.square().sum()),
            solved=float((scored >= SOLVED).sum()),
            flat_groups=float((lowest >= highest).sum()),
            groups=len(rewards),
            response_tokens=float(lengths.sum()),
            tokens=float(lengths.sum()) + prompts * rewards.shape[1],
            cut=float((lengths == longest).sum()),
            best=float(scored.max()) if len(scored) else -inf,
        )

    def over_ranks(self, device: torch.device, *, counts: bool) -> "RolloutSums":
        """Returns the sums over all ranks. Every rank calls this.

        Args:
            device: the device of this rank.
            counts: False on a rank whose pairs another rank counts.
        """
        *addends, best = astuple(self)
        sums = torch.tensor(addends, dtype=torch.float64, device=device) * counts
        highest = torch.tensor(best, dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        return replace(
            RolloutSums(**dict(zip(_ADDENDS, sums.tolist(), strict=True)), best=highest.item())
        )


_ADDENDS = [name for name in RolloutSums.__slots__ if name != "best"]


def columns_of(
    totals: RolloutSums,
    sums: Tensor,
    *,
    generations: int,
    rollout_s: float,
    training_s: float,
) -> dict[str, float | int | None]:
    """Returns the columns that reinforcement learning adds to a row of metrics.jsonl.

    Args:
        totals: sums over the rollouts of all ranks.
        sums: `PolicySums` of all updates and ranks.
        generations: responses to each prompt.
        rollout_s: seconds until all responses were scored.
        training_s: seconds of the updates.
    """
    mean = totals.reward / totals.scored if totals.scored else None
    deviation = None
    if mean is not None:
        deviation = sqrt(max(0.0, totals.squares / totals.scored - mean**2))
    policy = PolicySums(*sums.tolist()).means()
    return {
        "pairs": int(totals.pairs),
        "generations_per_prompt": generations,
        "reward": mean,
        "reward_sd": deviation,
        "reward_best": totals.best if isfinite(totals.best) else None,
        "solved": totals.solved / totals.scored if totals.scored else None,
        "unscored": int(totals.pairs - totals.scored),
        "flat_groups": totals.flat_groups / totals.groups,
        "response_tokens": totals.response_tokens / totals.pairs,
        "cut_responses": totals.cut / totals.pairs,
        **{name: value if isfinite(value) else None for name, value in policy.items()},
        "rollout_s": round(rollout_s, 6),
        "training_s": round(training_s, 6),
        "rollout_tokens_per_s": round(totals.response_tokens / max(rollout_s, 1e-9), 1),
        "training_tokens_per_s": round(totals.tokens / max(training_s, 1e-9), 1),
    }
