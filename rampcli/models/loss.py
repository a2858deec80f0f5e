"""The last projection and the cross entropy together, some tokens at a time: the logits of a large vocabulary are never there whole."""

from typing import Any

import torch
from torch import Tensor, nn

TOKENS_AT_ONCE = {"cpu": 256, "cuda": 2048}
"""Whose logits are there together, at least: fewer would not keep the processor busy, on a GPU not the whole of it."""
LOGITS_AT_ONCE = 2**23
"""Of a small vocabulary, so many: the gradient of the projection is then added to less often."""


def summed_loss(hidden: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """Cross entropy in nats, summed over the labels that count.

    Args:
        hidden: hidden states, [batch, sequence, hidden].
        output: the projection to logits, without bias.
        labels: int64 [batch, sequence]; those below 0 do not count.

    Returns:
        A scalar in fp32.
    """
    loss: Tensor = ProjectedCrossEntropy.apply(
        hidden.flatten(0, 1), output.weight, labels.flatten(), torch.is_grad_enabled()
    )  # type: ignore[no-untyped-call]
    return loss


class ProjectedCrossEntropy(torch.autograd.Function):
    """Hidden states [tokens, hidden], a weight [vocabulary, hidden] and labels [tokens] to a loss.

    The gradients are computed where the logits are, in the forward pass: the backward pass would have to compute the logits again.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, learns: bool) -> Tensor:  # noqa: D102
        at_once = min(
            len(hidden), max(TOKENS_AT_ONCE[hidden.device.type], LOGITS_AT_ONCE // len(weight))
        )
        # fp32 where the weight is bf16: it is a sum over pieces.
        weight_gradient = weight.new_empty(weight.shape, dtype=torch.float32) if learns else None
        hidden_gradient = torch.empty_like(hidden) if learns else None
        logits = weight.new_empty((at_once, len(weight)))
        scores = (
            logits
            if logits.dtype is torch.float32
            else torch.empty_like(logits, dtype=torch.float32)
        )
        loss = weight.new_zeros((), dtype=torch.float32)
        for first in range(0, len(hidden), at_once):
            piece = slice(first, first + at_once)
            states, wanted = hidden[piece], labels[piece, None]
            counts = wanted >= 0
            wanted = wanted.clamp(min=0)
            logits, scores = logits[: len(states)], scores[: len(states)]
            torch.mm(states, weight.t(), out=logits)
            torch.sub(logits, logits.amax(dim=1, keepdim=True).float(), out=scores)
            score_of_label = scores.gather(1, wanted)
            total = scores.exp_().sum(dim=1, keepdim=True)
            loss += ((total.log() - score_of_label) * counts).sum()
            if weight_gradient is not None and hidden_gradient is not None:
                # Of the cross entropy with respect to the logits: the probabilities, less 1 where the label is. Here it is that times
                # the total, by which it is cheaper to divide the narrow side of either product.
                change, share = (
                    scores.scatter_add_(1, wanted, -total).to(weight.dtype),
                    counts / total,
                )
                torch.mm(change, weight, out=hidden_gradient[piece]).mul_(share)
                _put_product(
                    weight_gradient,
                    change.t(),
                    (states * share).to(weight.dtype),
                    is_first=first == 0,
                )
        if weight_gradient is not None and hidden_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: D102
        (scale,) = gradients
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient.mul_(scale), weight_gradient.mul_(scale), None, None


def _put_product(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """Add a product to what is there, or put the first in the place of what is not."""
    if left.dtype is total.dtype:
        total.addmm_(left, right, beta=0 if is_first else 1)
    elif is_first:
        total.copy_(left @ right)
    else:
        total.add_(left @ right)
