"""The feed-forward layer of a decoder."""

from functools import partial
from pkgutil import resolve_name

from torch import Tensor, nn

from rampcli.config.schema import ModelConfig
from rampcli.models.linear import build_linear
from rampcli.models.parts import FeedForwardPart


class FeedForward(nn.Module):
    """Two projections with an activation function between them, which may be gated.

    Maps [batch, sequence, hidden] to the same shape.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        declared = FeedForwardPart(model)
        self.tensor_plan = declared.tensor_plan
        kind, linears = declared.activation, declared.linears
        self.activation = partial(resolve_name(kind.function), **kind.options)
        self.gate = build_linear(linears["gate"]) if kind.is_gated else None
        self.up = build_linear(linears["up"])
        self.output = build_linear(linears["output"])

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        if self.gate is None:
            inner = self.activation(self.up(hidden))
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        output: Tensor = self.output(inner)
        return output
