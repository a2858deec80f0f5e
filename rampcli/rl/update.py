"""The gradient of an update of the policy."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.rl.objective import PolicyBatch, PolicySums
from rampcli.rl.passes import PolicyPasses
from rampcli.train.step import StepResult, local_gradients, squared_norm


def accumulate_policy_gradient(
    passes: PolicyPasses,
    batches: Iterable[PolicyBatch],
    *,
    count: int,
    gradient_clip_val: float | None,
    between: Callable[[], None] = lambda: None,
) -> tuple[StepResult, Tensor]:
    """Runs forward and backward over an update's pairs, then clips. Gradients are left in `.grad`.

    The sum over all pairs is divided by the counts of all ranks at the end, so that neither micro
    batches nor ranks change the gradient.

    Args:
        batches: this rank's pairs, one batch for each pass. They may arrive while earlier ones are
            trained on.
        gradient_clip_val: largest norm of the gradient. None disables clipping.
        between: called between passes. An exception that it raises ends the step, which then has
            no effect.

    Returns:
        Loss and gradient norm, and the `PolicySums` of all ranks.
    """
    passes.sums.zero_()
    ranks = passes.meshes.gradient_ranks
    # FSDP divides gradients by the ranks.
    loss = passes.forward_backward(batches, count=count, scale=ranks, between=between)
    norm = squared_norm(passes.parts, device=passes.device)
    totals = torch.stack([loss.double() / ranks, norm, *passes.sums])
    dist.all_reduce(totals, group=passes.ranks)
    summed_loss, squares, *sums = totals.tolist()
    counts = PolicySums(*sums)
    denominator = passes.objective.denominator(
        pairs=round(counts.pairs), tokens=round(counts.tokens)
    )
    grad_norm = squares**0.5 / denominator
    clipping = 1.0
    if gradient_clip_val is not None and grad_norm > gradient_clip_val:
        clipping = gradient_clip_val / grad_norm
    torch._foreach_mul_(local_gradients(passes.parts, copies=True), clipping / denominator)
    return StepResult(loss=summed_loss / denominator, grad_norm=grad_norm), totals[2:]
