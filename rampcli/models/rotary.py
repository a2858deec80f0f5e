"""Rotary positions (arXiv 2104.09864), and Llama 3.1's scaling of them."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from rampcli.config.model_size import head_size_of
from rampcli.config.schema import ModelConfig


class RotaryTable(nn.Module):
    """Positions int64 [sequence] to their cosines and sines, fp32 [2, sequence, head_size]; [batch, sequence] to [2, batch, 1, ...]."""

    def __init__(self, model: ModelConfig, *, sequence_length: int) -> None:
        super().__init__()
        self.model = model
        self.register_buffer(
            "table", torch.empty(2, sequence_length, head_size_of(model)), persistent=False
        )
        self.table: Tensor

    def fill(self) -> None:
        """Compute the table, on the device where it lives."""
        angles = torch.outer(
            torch.arange(self.table.shape[1], dtype=torch.float64), frequencies(self.model)
        ).repeat(1, 2)
        self.table.copy_(torch.stack([angles.cos(), angles.sin()]))

    def forward(self, positions: Tensor) -> Tensor:  # noqa: D102
        return self.table[:, positions if positions.dim() == 1 else positions[:, None]]


def frequencies(model: ModelConfig) -> Tensor:
    """Radians per token of each pair of a head's dimensions, float64 [head_size / 2]."""
    head_size = head_size_of(model)
    turning = model.rotary_base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    if model.rotary_scale_factor is None:
        return turning
    # Llama 3.1 (its `apply_scaling`): rotations that were seen to turn often in training stay, slow ones slow down, between them a blend.
    turns = model.rotary_original_length * turning / (2 * math.pi)
    low, high = model.rotary_low_freq_factor, model.rotary_high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * turning + (1 - kept) * turning / model.rotary_scale_factor


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn queries or keys [batch, heads, sequence, head_size] by their positions; halves are paired, as Hugging Face's Llama has it."""
    # torch.compile derives a backward as good, and does not find again what it compiled of a graph with a function such as this.
    turn = _turned if torch.compiler.is_compiling() else Rotated.apply
    turned: Tensor = turn(heads, *rotation.to(heads.dtype))
    return turned


class Rotated(torch.autograd.Function):
    """Heads, cosines and sines to the heads turned; the gradient turns back."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(cos, sin)
        return _turned(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: D102
        cos, sin = ctx.saved_tensors
        return _turned(gradients[0], cos, -sin), None, None


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    turned = heads * cos
    turned[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return turned
