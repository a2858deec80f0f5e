"""Fuses the output projection with the cross entropy, or with log-probabilities and entropies.

Tokens are processed in chunks, so the logits of a large vocabulary are never in memory as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rampcli.models.linear import OutputProjection
from rampcli.models.parts import chunk_size


@dataclass(slots=True)
class ZLoss:
    """The z-loss, log(Z)^2, where Z is the sum of the exponentials of a token's logits.

    It keeps log(Z) near 0 (PaLM, arXiv 2204.02311, section 5; ST-MoE, arXiv 2202.08906). A loss
    that takes a `ZLoss` still returns the cross entropy, but its gradient is that of the cross
    entropy plus `weight` times the z-loss. Without gradients, it leaves the z-loss out.

    Attributes:
        weight: factor of the z-loss.
        sum: z-loss of all valid tokens since this was last set to 0, a float64 scalar.
    """

    weight: float
    sum: Tensor

    def add(self, log_z: Tensor, is_counted: Tensor) -> Tensor:
        """Adds the z-loss of some tokens to the sum.

        Returns the derivatives of the weighted z-loss with respect to log(Z). They have the shape
        of `log_z` and of `is_counted`, and are 0 for tokens that are not counted.
        """
        self.sum += (log_z.square() * is_counted).sum()
        return 2 * self.weight * log_z * is_counted


def summed_loss(
    hidden: Tensor, output: OutputProjection, labels: Tensor, *, z_loss: ZLoss | None = None
) -> Tensor:
    """Returns the cross entropy in nats, summed over tokens; a scalar in fp32.

    Args:
        hidden: hidden states, [batch, sequence, hidden].
        output: projection to logits.
        labels: int64 [batch, sequence]; negative labels are ignored.
        z_loss: adds its gradient to the one of the cross entropy.
    """

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        summed: Tensor = ProjectedCrossEntropy.apply(
            hidden.flatten(0, 1), weight, labels.flatten(), torch.is_grad_enabled(), z_loss
        )  # type: ignore[no-untyped-call]
        return summed

    loss: Tensor = output(hidden, compute)
    return loss


class ProjectedCrossEntropy(torch.autograd.Function):
    """Maps hidden states, the projection's weight and labels to a loss.

    Shapes: [tokens, hidden], [vocabulary, hidden] and [tokens].

    The forward pass computes the gradients too, while it holds the logits. The backward pass would
    have to compute the logits again.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        needs_gradient: bool,
        z_loss: ZLoss | None,
    ) -> Tensor:
        gradients = ProjectionGradients(hidden, weight) if needs_gradient else None
        loss = weight.new_zeros((), dtype=torch.float32)
        for chunk, scores, largest in scores_by_chunk(hidden, weight):
            wanted = labels[chunk, None]
            is_counted = wanted >= 0
            wanted = wanted.clamp(min=0)
            score_of_label = scores.gather(1, wanted)
            total = scores.exp_().sum(dim=1, keepdim=True)
            loss += ((total.log() - score_of_label) * is_counted).sum()
            if gradients is not None:
                if z_loss is not None:
                    # In the gradient, the softmax has this factor, and the label's 1 has not. A
                    # factor of exactly 0 could not be divided by, and eps is 0 up to rounding.
                    factor = 1 + z_loss.add(total.log() + largest, is_counted)
                    total /= factor.where(factor != 0, torch.finfo(factor.dtype).eps)
                gradients.add(chunk, scores, total, wanted, scale=is_counted)
        if gradients is not None:
            ctx.save_for_backward(gradients.of_hidden, gradients.of_weight.to(weight.dtype))
        return loss

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        (scale,) = gradients
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient.mul_(scale), weight_gradient.mul_(scale), None, None, None


def scores_by_chunk(
    hidden: Tensor, weight: Tensor, *, temperature: float = 1.0
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yields chunks of tokens with their logits, shifted so that the largest of a token is 0.

    The logits are divided by the temperature. They are [tokens, vocabulary], in fp32 or the
    weight's wider type, and may be overwritten: the next chunk uses the same memory. Then come the
    largest logits, [tokens, 1], before the division.
    """
    at_once = chunk_size(len(hidden), len(weight), device=hidden.device.type)
    logits = weight.new_empty((at_once, len(weight)))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scores = logits if logits.dtype is dtype else torch.empty_like(logits, dtype=dtype)
    for first in range(0, len(hidden), max(1, at_once)):
        chunk = slice(first, first + at_once)
        states = hidden[chunk]
        logits, scores = logits[: len(states)], scores[: len(states)]
        torch.mm(states, weight.t(), out=logits)
        largest = logits.amax(dim=1, keepdim=True).to(dtype)
        torch.sub(logits, largest, out=scores)
        if temperature != 1:
            scores.div_(temperature)
        yield chunk, scores, largest


class ProjectionGradients:
    """Sums the gradients of negative log-probabilities over chunks of tokens.

    Attributes:
        of_hidden: gradient with respect to the hidden states, in their type. Chunks that were not
            added are uninitialised.
        of_weight: gradient with respect to the projection's weight. In fp32 even if the weight is
            bf16, because it is a sum over chunks.
    """

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        self.hidden, self.weight = hidden, weight
        self.of_hidden = torch.empty_like(hidden)
        self.of_weight = torch.zeros_like(
            weight, dtype=torch.promote_types(weight.dtype, torch.float32)
        )

    def add(
        self, chunk: slice, exponentials: Tensor, total: Tensor, labels: Tensor, *, scale: Tensor
    ) -> None:
        """Adds the gradients of a chunk, and overwrites `exponentials`.

        Args:
            exponentials: of the scores, [tokens, vocabulary].
            total: divisor of each token's exponentials, [tokens, 1]. Their sum makes them the
                softmax.
            labels: int64 [tokens, 1], without ignored labels.
            scale: factor of each token's gradient, [tokens, 1].
        """
        # The gradient with respect to the logits is exponentials / total - onehot(label). Here it
        # is scaled by `total`: dividing the narrow factor of each product is cheaper.
        logit_gradient = exponentials.scatter_add_(1, labels, -total).to(self.weight.dtype)
        scale = scale / total
        torch.mm(logit_gradient, self.weight, out=self.of_hidden[chunk]).mul_(scale)
        states = (self.hidden[chunk] * scale).to(self.weight.dtype)
        if logit_gradient.dtype is self.of_weight.dtype:
            self.of_weight.addmm_(logit_gradient.t(), states)
        else:
            self.of_weight.add_(logit_gradient.t() @ states)


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
