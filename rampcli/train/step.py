"""The gradient of one step, and one validation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rampcli.data.loader import MicroBatch
from rampcli.models.decoder import Decoder
from rampcli.train.passes import Passes


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss in nats per token over the global batch, before the step; norm of its gradient before clipping."""

    loss: float
    grad_norm: float


def follow_gradient(
    passes: Passes,
    micro_batches: Sequence[MicroBatch],
    *,
    global_tokens: int,
    gradient_clip_val: float | None,
    between: Callable[[], None] = lambda: None,
) -> StepResult:
    """Leave the gradient of the mean loss over all valid tokens of the global batch, clipped, in the parameters.

    Args:
        passes: the model.
        micro_batches: this rank's share.
        global_tokens: valid tokens of the global batch, all ranks together.
        gradient_clip_val: the largest norm that the gradient is let through with; None lets all through.
        between: is called between micro batches, outside of a pipeline's schedule. What it raises ends the step, which then counts for
            nothing.
    """
    ranks = passes.meshes.ranks_with_other_tokens
    # Ranks and micro batches hold different token counts, so the mean is over the whole batch; FSDP divides by the ranks once more.
    loss = passes.forward_backward(
        micro_batches, scale=ranks / max(1, global_tokens), between=between
    )
    totals = torch.stack([loss.double() / ranks, squared_norm(passes.parts, device=passes.device)])
    dist.all_reduce(totals)
    mean_loss, grad_norm = totals[0].item(), totals[1].sqrt().item()
    if gradient_clip_val is not None and grad_norm > gradient_clip_val:
        torch._foreach_mul_(_gradients(passes.parts, copies=True), gradient_clip_val / grad_norm)
    return StepResult(loss=mean_loss, grad_norm=grad_norm)


def squared_norm(parts: Sequence[Decoder], *, device: torch.device) -> Tensor:
    """What this rank adds to the squared norm of the whole gradient, a float64 scalar: each number of it is counted by one rank."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    if gradients := _gradients(parts, copies=False):
        total += torch.stack(torch._foreach_norm(gradients)).double().square().sum()
    return total


@torch.no_grad()
def validate(
    passes: Passes, rounds: Iterable[MicroBatch], *, between: Callable[[], None] = lambda: None
) -> float:
    """Mean loss in nats per valid token, over the micro batches of all ranks; `between` as above."""
    totals = torch.zeros(2, dtype=torch.float64, device=passes.device)
    remaining = iter(rounds)
    while micro_batches := list(islice(remaining, passes.at_a_time)):
        loss = passes.forward(micro_batches)
        totals += torch.stack(
            [loss.double(), totals.new_tensor(passes.valid_tokens(micro_batches))]
        )
        between()
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def _gradients(parts: Sequence[Decoder], *, copies: bool) -> list[Tensor]:
    """This rank's part of every gradient; `copies`: also those that an earlier rank has too."""
    gradients = []
    for part in parts:
        parameters = part.parameters() if copies else part.own_parameters().values()
        for gradient in (parameter.grad for parameter in parameters):
            if isinstance(gradient, DTensor):
                if copies or _is_first_copy(gradient):
                    gradients.append(gradient.to_local())
            elif gradient is not None:
                gradients.append(gradient)
    return gradients


def _is_first_copy(gradient: DTensor) -> bool:
    places = zip(gradient.placements, gradient.device_mesh.get_coordinate() or (), strict=True)
    return all(place == 0 for placement, place in places if placement.is_replicate())
