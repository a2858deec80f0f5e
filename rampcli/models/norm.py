"""The normalisations of a decoder."""

from pkgutil import resolve_name
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import NORMS


def build_norm(model: ModelConfig) -> nn.Module:
    """Returns the normalisation of `model.normalization` over the hidden size."""
    kind = resolve_name(NORMS[model.normalization].module)
    norm: nn.Module = kind(model.hidden_size, eps=model.norm_epsilon)
    return norm


class RMSNorm(nn.RMSNorm):
    """RMSNorm (arXiv 1910.07467) over the last dimension, faster on a CPU than torch's own.

    On a CPU, torch builds it from many operations, each with its own backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        # GPUs and torch.compile have a fused kernel. Subclasses, such as DTensor, dispatch on ops.
        if x.device.type != "cpu" or type(x) is not Tensor or torch.compiler.is_compiling():
            return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        if not torch.is_grad_enabled():
            return _normalise(x, self.weight, self.eps)[0]
        normed: Tensor = FusedRMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class FusedRMSNorm(torch.autograd.Function):
    """Divides inputs [..., size] by their root mean square and multiplies by a weight [size].

    Computes in fp32 or wider.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:  # noqa: D102
        normed, scaled, scale = _normalise(x, weight, epsilon)
        ctx.save_for_backward(scaled, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: D102
        (gradient,) = gradients
        scaled, weight, scale = ctx.saved_tensors
        gradient = gradient.to(scaled.dtype)
        of_products = gradient * scaled
        # The output does not depend on the input's length: remove the gradient along the input.
        along = (of_products @ weight.to(scaled.dtype)).div_(weight.numel()).unsqueeze(-1)
        of_input = torch.addcmul(gradient * weight, scaled, along, value=-1).mul_(scale)
        return (
            of_input.to(gradients[0].dtype),
            of_products.reshape(-1, weight.numel()).sum(0).to(weight.dtype),
            None,
        )


def _normalise(x: Tensor, weight: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the normed inputs, those without the weight, and what they were multiplied by."""
    lengths = torch.linalg.vector_norm(
        x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)
    )
    scale = lengths.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
    scaled = x * scale
    return (scaled * weight).to(x.dtype), scaled, scale
