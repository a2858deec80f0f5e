"""Attention on a GPU to a range of keys, by torch's flex attention (arXiv 2412.05496).

Its kernels skip blocks of keys that no query of a block attends to.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
"""Queries and keys of a block."""


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
