"""Masks of attention that are more than causal, and attention to blocks of keys on a GPU.

A query attends to its own token and to those before it, back to a first key. A forward pass builds
its mask once. All layers use it, also when they are recomputed. On a GPU, torch's flex attention
(arXiv 2412.05496) skips blocks of keys that no query of a block attends to.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from rampcli.models.parts import SMALLEST_FLEX_HEAD
from rampcli.settings.model import ModelConfig

BLOCK = 128
"""Queries and keys of a block."""
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


@cache
def compiled_attention() -> Callable[..., Any]:
    """Returns flex attention that is compiled. Otherwise, it would compute all scores.

    So it would after 8 versions, of which training, validation and the pieces of a context-parallel
    rank with two sizes of micro batches need as many.
    """
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention)


def attend_to_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask) -> Tensor:
    """Returns the attention of queries to the keys of a mask, [batch, heads, queries, head_size].

    Args:
        query: [batch, heads, queries, head_size].
        key, value: [batch, groups, sequence, head_size].
    """
    attend: Callable[..., Any] = flex_attention
    if not torch.compiler.is_compiling():
        attend = compiled_attention()
    mixed: Tensor = attend(
        query,
        key,
        value,
        block_mask=mask,
        enable_gqa=query.shape[1] > key.shape[1],
        # The kernel that torch prefers for fewer than 128 queries takes no blocks of this size.
        kernel_options={"BACKEND": "TRITON"},
    )
    return mixed


def block_mask(first_keys: Tensor, sequence: int) -> BlockMask:
    """Returns the mask of the last queries of a sequence, each of which has a range of keys.

    Needs memory for blocks only, and does not wait for the device.

    Args:
        first_keys: the first key of each query, int32 [batch or 1, queries]. The last key of a
            query is its own.
    """
    rows, queries = first_keys.shape
    offset = sequence - queries

    def is_seen(sample: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        first = first_keys[sample, query] if rows > 1 else first_keys[0, query]
        return (key <= query + offset) & (key >= first)

    device = first_keys.device
    first_query = torch.arange(0, queries, BLOCK, device=device)
    # A block that is not full repeats the last query.
    each = (first_query[:, None] + torch.arange(BLOCK, device=device)).clamp(max=queries - 1)
    firsts = first_keys[:, None, each][..., None, :]
    first_query = first_query[:, None] + offset
    last_query = (first_query + BLOCK).clamp(max=sequence) - 1
    first_key = torch.arange(0, sequence, BLOCK, device=device)
    last_key = first_key + BLOCK - 1
    is_any = (first_key <= last_query) & (last_key >= firsts.amin(dim=-1))
    is_all = (last_key <= first_query) & (first_key >= firsts.amax(dim=-1))
    # As torch has it, a block with fewer queries has a mask.
    is_all &= first_query + BLOCK <= sequence
    return BlockMask.from_kv_blocks(
        *_numbered(is_any & ~is_all),
        *_numbered(is_all),
        BLOCK_SIZE=BLOCK,
        mask_mod=is_seen,
        seq_lengths=(queries, sequence),
    )


def _numbered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how many blocks of keys each block of queries has, and their indices, those first.

    Args:
        blocks: bool [batch, 1, blocks of queries, blocks of keys].
    """
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32), order.int()


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
