"""One optimiser step, and one validation."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch, RankBatch
from rampcli.models.decoder import Decoder
from rampcli.parallel.fsdp import reduce_gradients_on


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss in nats per token over the global batch, before the step; norm of its gradient before clipping."""

    loss: float
    grad_norm: float


def train_step(
    model: Decoder, optimizer: torch.optim.Optimizer, batch: RankBatch, *, global_tokens: int, gradient_clip_val: float | None
) -> StepResult:
    """Take one step on the gradient of the mean loss over all valid tokens of the global batch.

    Args:
        batch: this rank's share.
        global_tokens: valid tokens of the global batch, all ranks together.
        gradient_clip_val: the largest norm that the gradient is let through with; None lets all through.
    """
    ranks = dist.get_world_size()
    loss_sum = torch.zeros((), device=batch.micro_batches[0].tokens.device)
    for index, micro_batch in enumerate(batch.micro_batches):
        reduce_gradients_on(model, last_micro_batch=index == len(batch.micro_batches) - 1)
        micro_loss_sum = summed_loss(model, micro_batch)
        # Ranks and micro batches hold different token counts, so the mean is over the whole batch; FSDP divides by the ranks once more.
        (micro_loss_sum * (ranks / global_tokens)).backward()  # type: ignore[no-untyped-call]
        loss_sum += micro_loss_sum.detach()
    grad_norm = clip_gradients(model, gradient_clip_val)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss_sum)
    return StepResult(loss=loss_sum.item() / global_tokens, grad_norm=grad_norm)


def summed_loss(model: Decoder, micro_batch: MicroBatch) -> Tensor:
    """Cross entropy in nats, summed over the valid tokens of a micro batch; a scalar in fp32."""
    logits = model(micro_batch.tokens)
    return F.cross_entropy(logits.flatten(0, 1).float(), micro_batch.labels.flatten(), ignore_index=IGNORED, reduction="sum")


def clip_gradients(model: Decoder, gradient_clip_val: float | None) -> float:
    """Scale the gradient down to `gradient_clip_val`; the norm over all ranks before that."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf") if gradient_clip_val is None else gradient_clip_val)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()


@torch.no_grad()
def validate(model: Decoder, micro_batches: Iterable[MicroBatch], *, device: torch.device) -> float:
    """Mean loss in nats per valid token, over the micro batches of all ranks."""
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for micro_batch in micro_batches:
        totals += torch.stack([summed_loss(model, micro_batch).double(), totals.new_tensor(micro_batch.valid_tokens)])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()
