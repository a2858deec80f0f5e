"""Activation checkpointing: the backward pass recomputes activations (arXiv 1604.06174)."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from rampcli.config.schema.trainer import ActivationCheckpointing

KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Operations whose outputs `selective` keeps: matrix products and attention (arXiv 2205.05198)."""


def recompute_activations(blocks: Iterable[nn.Module], mode: ActivationCheckpointing) -> None:
    """Applies activation checkpointing to blocks, in place. Gradients do not change."""
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, **options)
