"""Rotary position embeddings (arXiv 2104.09864) and Llama 3.1's scaling of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from rampcli.settings.model import ModelConfig


class RotaryTable(nn.Module):
    """Maps positions to their cosines and sines.

    Positions int64 [sequence] give fp32 [2, sequence, head_size], and [batch, sequence] gives
    [2, batch, 1, sequence, head_size].
    """

    def __init__(self, model: ModelConfig, *, sequence_length: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer(
            "table", torch.empty(2, sequence_length, model.head_width), persistent=False
        )
        self.table: Tensor

    def fill(self) -> None:
        """Computes the table on its device."""
        angles = torch.outer(
            torch.arange(self.table.shape[1], dtype=torch.float64), frequencies(self.model)
        ).repeat(1, 2)
        self.table.copy_(torch.stack([angles.cos(), angles.sin()]))

    def forward(self, positions: Tensor) -> Tensor:  # noqa: D102
        return self.table[:, positions if positions.dim() == 1 else positions[:, None]]


def frequencies(model: ModelConfig) -> Tensor:
    """Returns radians per token for each pair of a head's dimensions, float64 [head_size / 2]."""
    head_size = model.head_width
    plain = model.rotary_base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    if model.rotary_scale_factor is None:
        return plain
    # Llama 3.1's `apply_scaling`: fast rotations stay, slow ones are divided by the factor, and
    # those in between are interpolated by their number of turns in the original length.
    turns = model.rotary_original_length * plain / (2 * math.pi)
    low, high = model.rotary_low_freq_factor, model.rotary_high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / model.rotary_scale_factor


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotates queries or keys [batch, heads, sequence, head_size] by their positions.

    Dimension i is paired with dimension i + head_size / 2, as in Hugging Face's Llama.
    """
    # torch.compile derives an equally good backward pass, and cannot cache a graph that contains
    # an autograd function.
    is_plain = torch.compiler.is_compiling() or not torch.is_grad_enabled()
    apply = _rotate if is_plain else Rotation.apply
    rotated: Tensor = apply(heads, *rotation.to(heads.dtype))
    return rotated


class Rotation(torch.autograd.Function):
    """Rotates heads by cosines and sines. The backward pass rotates the gradient back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(cos, sin)
        return _rotate(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: D102
        cos, sin = ctx.saved_tensors
        return _rotate(gradients[0], cos, -sin), None, None


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    rotated = heads * cos
    rotated[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return rotated
