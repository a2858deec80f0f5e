"""A decoder whose attention and feed-forward layers read the same input."""

from typing import Any

from torch import Tensor, nn

from rampcli.models.decoder import Block, Decoder


class ParallelDecoder(Decoder):
    """A decoder of `ParallelBlock`s."""

    def build_layer(self, model: Any) -> nn.Module:
        """Returns one layer."""
        return ParallelBlock(model)


class ParallelBlock(Block):
    """Adds attention and feed-forward of one normalised input to the residual stream."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        del self.ffn_norm

    def forward(self, hidden: Tensor, rotation: Any, mask: Any = None, cache: Any = None) -> Tensor:
        """Maps [batch, sequence, hidden] to the same shape."""
        normed = self.attention_norm(hidden)
        attended = self.attention(normed, rotation, mask, cache)
        output: Tensor = hidden + attended + self.ffn(normed)
        return output
