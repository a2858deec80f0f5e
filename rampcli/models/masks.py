"""Masks of attention that are more than causal.

A forward pass builds its mask once. All layers use it, also when they are recomputed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Mask = Tensor | tuple[Tensor | None, ...] | None
"""What a layer adds to the scores of its attention, or one for each piece of the queries.

None stands for causal attention, for which kernels need no mask.
"""
BuildMask = Callable[..., Mask]
"""Takes the arguments of `build_mask`."""


def build_mask(
    document_positions: Tensor | None,
    *,
    queries: int,
    sequence: int,
    sliding_window: int | None,
    like: Tensor,
) -> Tensor | None:
    """Returns the mask of the last `queries` tokens of a sequence, or None if it is causal.

    The mask holds 0 for the tokens that a query attends to, and else minus infinity. Kernels would
    convert a mask of booleans to these numbers in every layer.

    Args:
        document_positions: positions of the queries within their documents, int64
            [batch, queries]; None if tokens attend to other documents.
        sequence: number of tokens up to the last query.
        sliding_window: tokens that a query attends to at most; None for all of them.
        like: a tensor with the mask's device and number type.

    Returns:
        [queries, sequence], or [batch, 1, queries, sequence] with document positions.
    """
    # A single query needs no mask for the window: attention takes the last keys for it.
    window = sliding_window if sliding_window and queries > 1 else sequence
    is_aligned = queries in (1, sequence) or like.device.type == "cuda"
    if document_positions is None and window >= sequence and is_aligned:
        return None
    # Positions in int32, and no distances: only comparisons are as large as the mask.
    keys = torch.arange(sequence, dtype=torch.int32, device=like.device)
    rows = keys[sequence - queries :, None]
    hidden = keys > rows
    if window < sequence:
        hidden |= keys <= rows - window
    if document_positions is not None:
        starts = rows - document_positions[:, None, :, None].int()
        hidden = hidden | (keys < starts)
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
