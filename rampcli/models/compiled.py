"""Compiles transformer blocks. They share code and shapes, so one graph serves all of them."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from rampcli.models.cache import LayerCache


def compile_layers(blocks: Iterable[nn.Module]) -> None:
    """Compiles the forward passes of blocks in place, each when it is first called.

    Changes made to a block before this call are compiled too; later ones stay outside the graph.
    Passes with a cache are not compiled: each has another length, and would be compiled anew.
    """
    for block in blocks:
        block.forward = _compile_without_cache(block.forward)


def _compile_without_cache(eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled = torch.compile(eager, dynamic=False)

    def forward(
        hidden: Tensor,
        rotation: Tensor | None,
        document_positions: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        if cache is not None:
            return eager(hidden, rotation, document_positions, cache)
        return compiled(hidden, rotation, document_positions)

    return forward
