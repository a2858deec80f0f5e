"""Fuses the output projection with the log-probability of each label.

Tokens are processed in chunks, so the logits of a large vocabulary are never in memory as a whole.
"""

from typing import Any

import torch
from torch import Tensor

from rampcli.models.linear import OutputProjection
from rampcli.models.loss import ProjectionGradients, scores_by_chunk


def token_log_probs(
    hidden: Tensor, output: OutputProjection, labels: Tensor, *, temperature: float
) -> Tensor:
    """Returns each label's log-probability, and the entropy of the distribution, both in nats.

    The first has gradients, the second has none. The result can replace the loss of a decoder.

    Args:
        hidden: hidden states, [batch, sequence, hidden].
        output: projection to logits.
        labels: int64 [batch, sequence]; negative labels are ignored.
        temperature: divides the logits; above 0.

    Returns:
        [2, batch, sequence] in fp32, or fp64 if the weight is: log-probabilities, then entropies.
        Both are 0 where the label is ignored.
    """

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        # The projection is skipped for ignored labels: prompts and padding can be most of a batch.
        counted = (labels.flatten() >= 0).nonzero()[:, 0]
        both = ProjectedLogProbs.apply(
            hidden.flatten(0, 1).index_select(0, counted),
            weight,
            labels.flatten()[counted],
            temperature,
        )  # type: ignore[no-untyped-call]
        return torch.stack(
            [
                part.new_zeros(labels.numel()).index_copy(0, counted, part).view_as(labels)
                for part in both
            ]
        )

    found: Tensor = output(hidden, compute)
    return found


class ProjectedLogProbs(torch.autograd.Function):
    """Maps hidden states, the projection's weight and labels to log-probabilities and entropies.

    Shapes: [tokens, hidden], [vocabulary, hidden] and [tokens]; both results are [tokens].

    The forward pass saves its inputs only. The factor of each token's gradient is unknown until the
    backward pass, which therefore computes the logits again, chunk by chunk.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        log_probs, entropies = weight.new_empty((2, len(hidden)), dtype=dtype)
        for chunk, scores, _ in scores_by_chunk(hidden, weight, temperature=temperature):
            score_of_label = scores.gather(1, labels[chunk, None])[:, 0]
            exponentials = scores.exp_()
            total = exponentials.sum(dim=1)
            log_probs[chunk] = score_of_label - total.log()
            # entr(x) is -x log(x), here -exp(score) * score: the scores themselves are overwritten.
            mean = torch.special.entr(exponentials, out=exponentials).sum(dim=1) / total
            entropies[chunk] = total.log() + mean
        ctx.save_for_backward(hidden, weight, labels)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: D102
        hidden, weight, labels = ctx.saved_tensors
        scale = -gradients[0][:, None] / ctx.temperature
        found = ProjectionGradients(hidden, weight)
        for chunk, scores, _ in scores_by_chunk(hidden, weight, temperature=ctx.temperature):
            total = scores.exp_().sum(dim=1, keepdim=True)
            found.add(chunk, scores, total, labels[chunk, None], scale=scale[chunk])
        return found.of_hidden, found.of_weight.to(weight.dtype), None, None
