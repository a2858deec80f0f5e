"""Fuses the output projection with the cross entropy.

Tokens are processed in chunks, so the logits of a large vocabulary are never in memory as a whole.
"""

from typing import Any

import torch
from torch import Tensor, nn

TOKENS_AT_ONCE = {"cpu": 256, "cuda": 2048}
"""Smallest chunk of tokens, by device. Smaller chunks would leave the device idle."""
LOGITS_AT_ONCE = 2**23
"""Logits per chunk if the vocabulary is small.

Larger chunks add to the projection's gradient less often.
"""


def summed_loss(hidden: Tensor, output: nn.Linear, labels: Tensor) -> Tensor:
    """Returns the cross entropy in nats, summed over tokens; a scalar in fp32.

    Args:
        hidden: hidden states, [batch, sequence, hidden].
        output: projection to logits, without bias.
        labels: int64 [batch, sequence]; negative labels are ignored.
    """
    loss: Tensor = ProjectedCrossEntropy.apply(
        hidden.flatten(0, 1), output.weight, labels.flatten(), torch.is_grad_enabled()
    )  # type: ignore[no-untyped-call]
    return loss


class ProjectedCrossEntropy(torch.autograd.Function):
    """Maps hidden states, the projection's weight and labels to a loss.

    Shapes: [tokens, hidden], [vocabulary, hidden] and [tokens].

    The forward pass computes the gradients too, while it holds the logits. The backward pass would
    have to compute the logits again.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, needs_gradient: bool
    ) -> Tensor:
        at_once = min(
            len(hidden), max(TOKENS_AT_ONCE[hidden.device.type], LOGITS_AT_ONCE // len(weight))
        )
        # Summed over chunks, so in fp32 even if the weight is bf16.
        weight_gradient = (
            weight.new_empty(weight.shape, dtype=torch.float32) if needs_gradient else None
        )
        hidden_gradient = torch.empty_like(hidden) if needs_gradient else None
        logits = weight.new_empty((at_once, len(weight)))
        scores = (
            logits
            if logits.dtype is torch.float32
            else torch.empty_like(logits, dtype=torch.float32)
        )
        loss = weight.new_zeros((), dtype=torch.float32)
        for first in range(0, len(hidden), at_once):
            chunk = slice(first, first + at_once)
            states, wanted = hidden[chunk], labels[chunk, None]
            is_counted = wanted >= 0
            wanted = wanted.clamp(min=0)
            logits, scores = logits[: len(states)], scores[: len(states)]
            torch.mm(states, weight.t(), out=logits)
            torch.sub(logits, logits.amax(dim=1, keepdim=True).float(), out=scores)
            score_of_label = scores.gather(1, wanted)
            total = scores.exp_().sum(dim=1, keepdim=True)
            loss += ((total.log() - score_of_label) * is_counted).sum()
            if weight_gradient is not None and hidden_gradient is not None:
                # The gradient with respect to the logits is softmax(logits) - onehot(label). Here
                # it is scaled by `total`: dividing the narrow factor of each product is cheaper.
                logit_gradient = scores.scatter_add_(1, wanted, -total).to(weight.dtype)
                scale = is_counted / total
                torch.mm(logit_gradient, weight, out=hidden_gradient[chunk]).mul_(scale)
                _add_product(
                    weight_gradient,
                    logit_gradient.t(),
                    (states * scale).to(weight.dtype),
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


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """Adds `left @ right` to `total`; the first product overwrites it, as it is uninitialised."""
    if left.dtype is total.dtype:
        total.addmm_(left, right, beta=0 if is_first else 1)
    elif is_first:
        total.copy_(left @ right)
    else:
        total.add_(left @ right)
