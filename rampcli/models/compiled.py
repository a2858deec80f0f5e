"""Compiled layers. All layers have the same code and the same shapes, so one graph serves them all."""

from collections.abc import Iterable

import torch
from torch import nn


def compile_layers(blocks: Iterable[nn.Module]) -> None:
    """Let torch.compile make the forward passes of blocks when they are first run, in place.

    What is applied to blocks before is compiled with them; what is applied afterwards stays outside.
    """
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False)
