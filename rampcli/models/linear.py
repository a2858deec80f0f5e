"""The linear layers of a decoder."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rampcli.machine.host import has_bf16_products
from rampcli.models.parts import Linear
from rampcli.settings.trainer import MatmulPrecision


def build_linear(declared: Linear) -> nn.Linear:
    """Returns a linear layer. Every linear layer of a block is built here.

    So a number format in which blocks compute is chosen here.
    """
    return nn.Linear(declared.inputs, declared.outputs, bias=declared.has_bias)


def set_matmul_precision(precision: MatmulPrecision) -> None:
    """Sets torch's precision for the products of fp32 tensors that `round_factors` does not change.

    For `medium` it is `high`, because torch's own `medium` makes small models slower on a CPU.
    """
    torch.set_float32_matmul_precision("high" if precision == "medium" else precision)


def round_factors(layers: nn.Module, precision: MatmulPrecision, device: torch.device) -> None:
    """Makes the linear layers of fp32 modules multiply in bf16, in place, if that is asked for.

    Factors and products are rounded to bf16. Weights, inputs and outputs have the type fp32. Does
    nothing if the device has no instructions for it.
    """
    if precision == "medium" and multiplies_in_bf16(device):
        for module in layers.modules():
            if type(module) is nn.Linear:
                # All layers then share one compiled graph, unlike with a `forward` for each.
                module.__class__ = RoundedLinear


def multiplies_in_bf16(device: torch.device) -> bool:
    """Returns whether a device has instructions for products in bf16. GPUs are taken to have."""
    return device.type != "cpu" or has_bf16_products()


class RoundedLinear(nn.Linear):
    """A linear layer that multiplies in bf16."""

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        product: Tensor = RoundedProduct.apply(hidden, self.weight)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class RoundedProduct(torch.autograd.Function):
    """The product of hidden states [..., inputs] and a weight [outputs, inputs] in bf16.

    The gradients are products in bf16 too.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        rounded = hidden.bfloat16()
        ctx.save_for_backward(rounded, weight)
        return F.linear(rounded, weight.bfloat16()).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        rounded, weight = ctx.saved_tensors
        gradient = gradients[0].bfloat16()
        of_hidden = gradient @ weight.bfloat16()
        of_weight = gradient.flatten(0, -2).T @ rounded.flatten(0, -2)
        return of_hidden.to(weight.dtype), of_weight.to(weight.dtype)


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
