"""Compiles transformer blocks. They share code and shapes, so one graph serves all of them."""

from collections.abc import Iterable

import torch
from torch import nn


def compile_layers(blocks: Iterable[nn.Module]) -> None:
    """Compiles the forward passes of blocks in place, each when it is first called.

    Changes made to a block before this call are compiled too; later ones stay outside the graph.
    """
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False)
