"""The linear layers of a decoder."""

from torch import nn

from rampcli.models.parts import Linear


def build_linear(declared: Linear) -> nn.Linear:
    """Returns a linear layer. Every linear layer of a decoder is built here.

    So a number format in which linear layers compute is chosen here.
    """
    return nn.Linear(declared.inputs, declared.outputs, bias=declared.has_bias)
