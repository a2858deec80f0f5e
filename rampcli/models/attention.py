"""The attention layer of a decoder, with rotary position embeddings (arXiv 2104.09864)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask

from rampcli.models.cache import LayerCache
from rampcli.models.linear import build_linear
from rampcli.models.masks import Mask, attend_to_blocks
from rampcli.models.norm import RMSNorm
from rampcli.models.parts import AttentionPart
from rampcli.models.tiles import attend_in_tiles
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


class Attention(nn.Module):
    """Causal grouped-query attention (arXiv 2305.13245).

    Maps [batch, sequence, hidden] to the same shape. The number of heads is read from the
    projections' outputs, so a tensor-parallel rank can hold some of the heads.

    Attributes:
        core: attention proper, without weights. `rampcli.parallel.context` wraps the `core` of
            every module that has one.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        declared = AttentionPart(model)
        self.tensor_plan = declared.tensor_plan
        self.head_size = model.head_width
        self.query = build_linear(declared.linears["query"])
        self.key = build_linear(declared.linears["key"])
        self.value = build_linear(declared.linears["value"])
        self.output = build_linear(declared.linears["output"])
        self.query_norm = RMSNorm(self.head_size, eps=model.norm_epsilon) if model.qk_norm else None
        self.key_norm = RMSNorm(self.head_size, eps=model.norm_epsilon) if model.qk_norm else None
        self.core = CausalAttention(sliding_window=model.sliding_window)

    def forward(  # noqa: D102
        self,
        hidden: Tensor,
        rotation: Tensor | None,
        mask: Mask = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        query, key, value = (
            projection(hidden).unflatten(2, (-1, self.head_size))
            for projection in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None:
            key, value = cache.append(key, value)
        if cache is None or cache.prompts is None:
            mixed = self.core(query, key, value, mask)
        else:
            mixed = self._attend_with_prompts(query, key, value, mask, cache)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _attend_with_prompts(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, cache: LayerCache
    ) -> Tensor:
        """Returns the attention of the last token to its shared prompt and to `key` and `value`.

        The arguments and the result are those of `CausalAttention`, with a single query.
        """
        shared, prompts = cache.cache.shared, cache.prompts
        assert shared is not None
        assert query.shape[2] == 1
        assert prompts is not None
        assert not isinstance(mask, tuple | BlockMask)
        window = self.core.sliding_window
        if window is not None:
            key, value = key[:, :, -window:], value[:, :, -window:]
            prompts = prompts[:, :, :, max(0, prompts.shape[3] + key.shape[2] - window) :]
        prompt_keys, prompt_values = prompts.unbind()
        by_group = query.reshape(query.shape[0], key.shape[1], -1, self.head_size)
        # One softmax over both parts. Scores are in fp32, as in the kernels of attention.
        exact = by_group.float() * self.head_size**-0.5
        parts = (shared.multiply(exact, prompt_keys.mT.float()), exact @ key.mT.float())
        scores = torch.cat(parts, dim=-1)
        if mask is not None:
            scores = scores + mask[..., -scores.shape[-1] :]
        weights = scores.softmax(dim=-1).to(value.dtype)
        of_prompt, own = torch.split(weights, [part.shape[-1] for part in parts], dim=-1)
        mixed: Tensor = shared.multiply(of_prompt, prompt_values) + own @ value
        return mixed.reshape(query.shape)


class CausalAttention(nn.Module):
    """Scaled dot-product attention in which a token sees itself and the tokens before it.

    Args (of the forward pass):
        query: [batch, heads, queries, head_size], of the last tokens of the sequence.
        key, value: [batch, groups, sequence, head_size], of all tokens.
        mask: the keys that queries attend to, as `rampcli.models.masks.build_mask` returns it. None
            if tokens attend to all tokens up to themselves; a single query has the sliding window
            anyway.

    Returns [batch, heads, queries, head_size].
    """

    def __init__(self, *, sliding_window: int | None) -> None:
        super().__init__()
        self.sliding_window = sliding_window

    def forward(  # noqa: D102
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | BlockMask | None = None
    ) -> Tensor:
        if isinstance(mask, BlockMask):
            return attend_to_blocks(query, key, value, mask)
        if mask is not None and not mask.is_floating_point():
            mixed: Tensor = attend_in_tiles(query, key, value, mask)[0]
            return mixed
        queries, sequence = query.shape[2], key.shape[2]
        if queries == 1:
            return self._attend_with_last(query, key, value, mask)
        repeats = query.shape[1] // key.shape[1]
        # Kernels with a mask, and those for fp32 on a GPU, need one key head per query head.
        has_groups = (
            repeats > 1
            and mask is None
            and (query.device.type == "cpu" or query.dtype is not torch.float32)
        )
        if repeats > 1 and not has_groups:
            key, value = (heads.repeat_interleave(repeats, dim=1) for heads in (key, value))
        if mask is None and queries < sequence:
            # `is_causal` would align the first query with the first key.
            mask = causal_lower_right(queries, sequence)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=has_groups
        )

    def _attend_with_last(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Returns the attention of the last token, [batch, heads, 1, head_size].

        The query heads of a group become the queries of one head, so no key head is copied.
        """
        if self.sliding_window is not None:
            key, value = (heads[:, :, -self.sliding_window :] for heads in (key, value))
        if mask is not None:
            mask = mask[..., -key.shape[2] :]
        by_group = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        mixed = F.scaled_dot_product_attention(by_group, key, value, attn_mask=mask)
        return mixed.reshape(query.shape)
