"""The metrics of a step of reinforcement learning."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite, sqrt
from typing import NamedTuple

import torch
import torch.distributed as dist

from rampcli.batch.overlap import overlapped_s
from rampcli.batch.plan import BatchPlan
from rampcli.rl.generator import Rollout
from rampcli.rl.objective import PolicySums
from rampcli.train.passes import Passes

SOLVED = 1.0
"""A pair with at least this reward counts as solved."""


class RolloutSums(NamedTuple):
    """Sums over rollouts.

    Attributes:
        scored: pairs that have a reward.
        reward: sum of their rewards.
        squares: sum of the squares of their rewards.
        solved: pairs whose reward is at least `SOLVED`.
        flat_groups: groups whose rewards are all equal. They have no gradient.
        tokens: tokens of the prompts of all pairs, and of the responses.
        cut: responses that have reached the longest length without an end.
        rollout_s: seconds that were spent on generating and scoring, over all ranks.
        best: largest reward, or -inf if no pair has one.
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
    rollout_s: float
    best: float

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], *, stop: int) -> "RolloutSums":
        """Returns the sums over some rollouts with the same number of generations.

        Args:
            stop: the token that ends a response.
        """
        rewards = torch.cat([rollout.rewards for rollout in rollouts])
        lengths = torch.cat([rollout.responses.lengths.cpu() for rollout in rollouts])
        scored = rewards[~rewards.isnan()]
        lowest = rewards.nan_to_num(nan=inf).amin(dim=1)
        highest = rewards.nan_to_num(nan=-inf).amax(dim=1)
        prompts = sum(len(prompt) for rollout in rollouts for prompt in rollout.prompts)
        last = torch.cat([rollout.responses.tokens[:, -1].cpu() for rollout in rollouts])
        is_cut = (lengths == rollouts[0].responses.tokens.shape[1]) & (last != stop)
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
            cut=float(is_cut.sum()),
            rollout_s=sum(rollout.seconds for rollout in rollouts),
            best=float(scored.max()) if len(scored) else -inf,
        )

    def over_ranks(self, passes: Passes) -> "RolloutSums":
        """Returns the sums over all ranks. Every rank calls this."""
        counts = passes.meshes.counts_samples  # else, another rank counts these pairs
        sums = passes.sum_over_ranks([number * counts for number in self])
        best = torch.tensor(self.best, dtype=torch.float64)  # on the host, as are the sums
        dist.all_reduce(best, op=dist.ReduceOp.MAX, group=passes.meshes.hosts)
        return RolloutSums(*sums)._replace(best=best.item())


def times_of(
    totals: RolloutSums,
    batch_plan: BatchPlan,
    *,
    waited_s: float,
    step_time_s: float,
    generators: int,
) -> dict[str, float]:
    """Returns the columns with the seconds of a step.

    * `rollout_s`: mean time that a rank which generates spends on it.
    * `training_s`: time of this rank without waiting and generating.
    * `predicted_s`: time that `rampcli.batch.overlap` predicts for the whole step.

    Args:
        totals: sums over the rollouts of all ranks.
        batch_plan: how the prompts of the step are divided.
        waited_s: seconds that this rank has waited for rollouts, or spent on generating.
        generators: ranks that only generate; 0 if all ranks take turns.
    """
    training_s = step_time_s - waited_s
    if generators == 0:
        return {"rollout_s": waited_s, "training_s": training_s, "predicted_s": step_time_s}
    rollout_s = totals.rollout_s / generators
    predicted_s = overlapped_s(
        rollout_s,
        training_s,
        micro_batches=batch_plan.accumulate_grad_batches,
        data_ranks=batch_plan.data_parallel_size,
        generators=generators,
    )
    return {"rollout_s": rollout_s, "training_s": training_s, "predicted_s": predicted_s}


def columns_of(
    totals: RolloutSums,
    sums: PolicySums,
    times: Mapping[str, float],
    *,
    generators: int,
) -> dict[str, float | int | None]:
    """Returns the columns that reinforcement learning adds to a row of metrics.jsonl.

    Args:
        totals: sums over the rollouts of all ranks.
        sums: sums over all updates and ranks.
        times: seconds of the step, from `times_of`.
        generators: ranks that only generate.
    """
    mean = totals.reward / totals.scored if totals.scored else None
    deviation = None
    if mean is not None:
        deviation = sqrt(max(0.0, totals.squares / totals.scored - mean**2))
    policy = sums.means()
    return {
        "pairs": int(totals.pairs),
        "generations_per_prompt": int(totals.pairs / totals.groups),
        "reward": mean,
        "reward_sd": deviation,
        "reward_best": totals.best if isfinite(totals.best) else None,
        "solved": totals.solved / totals.scored if totals.scored else None,
        "unscored": int(totals.pairs - totals.scored),
        "flat_groups": totals.flat_groups / totals.groups,
        "response_tokens": totals.response_tokens / totals.pairs,
        "cut_responses": totals.cut / totals.pairs,
        **{name: value if isfinite(value) else None for name, value in policy.items()},
        "rollout_ranks": generators,
        **{name: round(seconds, 6) for name, seconds in times.items()},
        "rollout_tokens_per_s": round(totals.response_tokens / times["rollout_s"], 1),
        "training_tokens_per_s": round(totals.tokens / times["training_s"], 1),
    }
