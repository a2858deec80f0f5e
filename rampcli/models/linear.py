"""The linear layers of a decoder."""

from collections.abc import Callable

from torch import Tensor, nn

from rampcli.models.parts import Linear


def build_linear(declared: Linear) -> nn.Linear:
    """Returns a linear layer. Every linear layer of a block is built here.

    So a number format in which blocks compute is chosen here.
    """
    return nn.Linear(declared.inputs, declared.outputs, bias=declared.has_bias)


class OutputProjection(nn.Linear):
    """Projection of hidden states to logits, without bias.

    Its weight may be read within a call only: FSDP gathers it for the call.

    Args:
        declared: its sizes.
    """

    def __init__(self, declared: Linear) -> None:
        super().__init__(declared.inputs, declared.outputs, bias=declared.has_bias)

    def forward(
        self, hidden: Tensor, compute: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Tensor:
        """Maps hidden states [..., hidden] to logits [..., vocabulary].

        Args:
            compute: computes the result from the hidden states and the weight
                [vocabulary, hidden]. By default this is their product, the logits.
        """
        return super().forward(hidden) if compute is None else compute(hidden, self.weight)
