"""Attention on the CPU to a range of keys, in tiles, without a mask of the whole sequence.

Torch's kernel for the CPU skips keys only if attention is causal. Tiles leave out all others.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SHORTEST_TILE, LONGEST_TILE = 64, 256
"""Least and most rows of a tile with a mask. Documents of at least `SHORTEST_TILE` need none."""

attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Tile(NamedTuple):
    """Rows of queries, and the keys that any of them attends to.

    Attributes:
        samples: index of the samples.
        rows: index of the queries.
        keys: index of the keys.
        mask: what is added to the scores, [rows, keys]; None if attention is causal.
    """

    samples: slice
    rows: slice
    keys: slice
    mask: Tensor | None


@torch.library.custom_op("rampcli::attend_in_tiles", mutates_args=())
def attend_in_tiles(
    query: Tensor, key: Tensor, value: Tensor, first_keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the attention of the last queries of a sequence, each to a range of keys.

    Args:
        query: [batch, heads, queries, head_size].
        key, value: [batch, groups, sequence, head_size].
        first_keys: the first key of each query, int32 [batch or 1, queries], ascending. The last
            key of a query is its own.

    Returns:
        The mixed values, of the shape of `query`, and the logarithms of the softmaxes'
        denominators, [batch, heads, queries], at least in fp32.
    """
    mixed, logs = torch.empty_like(query), _empty_logs(query)
    for samples, rows, keys, mask in tiles(first_keys, key.shape[2], like=query):
        mixed[samples, :, rows], logs[samples, :, rows] = attend(
            query[samples, :, rows],
            key[samples, :, keys],
            value[samples, :, keys],
            is_causal=mask is None,
            attn_mask=mask,
        )
    return mixed, logs


@attend_in_tiles.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, first_keys: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return torch.empty_like(query), _empty_logs(query)


@torch.library.custom_op("rampcli::attend_in_tiles_backward", mutates_args=())
def attend_in_tiles_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first_keys: Tensor,
    mixed: Tensor,
    logs: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values. The arguments are those of the forward
    pass, its results, and the gradient of the mixed values.
    """
    of_query, of_key, of_value = (
        torch.empty_like(query),
        torch.zeros_like(key),
        torch.zeros_like(value),
    )
    for samples, rows, keys, mask in tiles(first_keys, key.shape[2], like=query):
        of_rows, of_keys, of_values = attend_backward(
            gradient[samples, :, rows],
            query[samples, :, rows],
            key[samples, :, keys],
            value[samples, :, keys],
            mixed[samples, :, rows],
            logs[samples, :, rows],
            dropout_p=0.0,
            is_causal=mask is None,
            attn_mask=mask,
        )
        of_query[samples, :, rows] = of_rows
        of_key[samples, :, keys] += of_keys
        of_value[samples, :, keys] += of_values
    return of_query, of_key, of_value


@attend_in_tiles_backward.register_fake
def _(
    gradient: Tensor,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, Tensor, None]:
    return *attend_in_tiles_backward(gradient, *ctx.saved_tensors), None


attend_in_tiles.register_autograd(_backward, setup_context=_keep)


def _empty_logs(query: Tensor) -> Tensor:
    return query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))


def tiles(first_keys: Tensor, sequence: int, *, like: Tensor) -> Iterator[Tile]:
    """Yields the tiles of attention, as `attend_in_tiles` describes it.

    A whole document of at least `SHORTEST_TILE` tokens is one tile, which is causal. A tile of
    other queries has `SHORTEST_TILE` to `LONGEST_TILE` rows, and at most an eighth as many as keys
    if these are many, so that it has few hidden keys.

    Args:
        like: a tensor with the masks' number type.
    """
    for sample, first in enumerate(first_keys.numpy()):
        samples = slice(sample, sample + 1) if len(first_keys) > 1 else slice(None)
        offset = sequence - len(first)
        for start, stop, is_whole in _row_ranges(first, offset):
            keys = slice(int(first[start]), offset + stop)
            mask = None
            if not is_whole:
                indices = np.arange(keys.start, keys.stop, dtype=np.int32)
                rows = np.arange(offset + start, offset + stop, dtype=np.int32)[:, None]
                hidden = (indices > rows) | (indices < first[start:stop, None])
                mask = torch.zeros(hidden.shape, dtype=like.dtype)
                mask.masked_fill_(torch.from_numpy(hidden), float("-inf"))
            yield Tile(samples, slice(start, stop), keys, mask)


def _row_ranges(first: np.ndarray, offset: int) -> Iterator[tuple[int, int, bool]]:
    """Yields the rows of each tile of a sample: the first, the one after the last, and whether they
    are a whole document.
    """
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    stops = np.append(starts[1:], len(first))
    is_whole = (first[starts] == starts + offset) & (stops - starts >= SHORTEST_TILE)
    row = 0
    for start, stop in [
        *np.stack([starts, stops], axis=1)[is_whole].tolist(),
        (len(first), len(first)),  # no document: the rows after the last one
    ]:
        while row < start:
            keys = row + offset + 1 - int(first[row])
            end = min(start, row + min(max(SHORTEST_TILE, keys // 8), LONGEST_TILE))
            yield row, end, False
            row = end
        if start < stop:
            yield start, stop, True
            row = stop
