"""Masks of attention that are more than causal.

A query attends to its own token and to those before it, back to a first key. A forward pass builds
its mask once. All layers use it, also when they are recomputed.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from rampcli.models.flex import block_mask
from rampcli.models.micro_batch import SMALLEST_FLEX_HEAD
from rampcli.settings.model import ModelConfig

Mask = Tensor | BlockMask | tuple[Tensor | BlockMask | None, ...] | None
"""The keys that queries attend to, or one such mask for each piece of the queries.

* None stands for causal attention, for which kernels need no mask.
* int32 [batch or 1, queries], on the CPU: the first key of each query.
* A `BlockMask`, on a GPU that has flex attention.
* [batch or 1, 1, queries, sequence], on another GPU and for a cache with pads: the numbers that are
  added to the scores, 0 or minus infinity.
"""
BuildMask = Callable[..., Mask]
"""Takes the arguments of `build_mask`."""


def build_mask(
    document_positions: Tensor | None,
    *,
    queries: int,
    sequence: int,
    model: ModelConfig,
    like: Tensor,
    is_cached: bool = False,
) -> Tensor | BlockMask | None:
    """Returns the mask of the last `queries` tokens of a sequence, or None if it is causal.

    Args:
        document_positions: positions of the queries within their documents, int64
            [batch, queries]; None if tokens attend to other documents.
        sequence: number of tokens up to the last query.
        model: has the sliding window and the size of the heads.
        like: a tensor with the device and the number type of the queries.
        is_cached: keys come from a cache. Each such pass has a length of its own, for which flex
            attention would be compiled anew. Positions then tell the pads of rows, whose queries
            are few and faster all at once.
    """
    device, window = like.device, model.sliding_window or sequence
    # A single query needs no mask for the window: attention takes the last keys for it.
    has_window = queries > 1 and window < sequence
    is_aligned = queries in (1, sequence) or device.type == "cuda"
    if document_positions is None and is_aligned and not has_window:
        return None
    rows = torch.arange(sequence - queries, sequence, dtype=torch.int32, device=device)
    first_keys = (rows - (window - 1)).clamp(min=0)[None]
    if document_positions is not None:
        first_keys = torch.maximum(first_keys, rows - document_positions.int())
    has_pads = is_cached and document_positions is not None
    if device.type == "cpu" and not has_pads:
        return first_keys
    if not is_cached and has_flex_attention(device, model):
        return block_mask(first_keys, sequence)
    keys = torch.arange(sequence, dtype=torch.int32, device=device)
    hidden = (keys > rows[:, None]) | (keys < first_keys[:, None, :, None])
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))


def has_flex_attention(device: torch.device, model: ModelConfig) -> bool:
    """Returns whether flex attention can train a model here: its kernels are written in Triton."""
    return device.type == "cuda" and model.head_width >= SMALLEST_FLEX_HEAD and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
