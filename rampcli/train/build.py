"""Builds a model on its ranks from the configuration."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from rampcli.checkpoint.shards import shard_of
from rampcli.estimate.layer_memory import needs_fsdp
from rampcli.models.cache import LayerCache
from rampcli.models.decoder import Decoder
from rampcli.models.initialize import initial_rows
from rampcli.models.linear import round_factors
from rampcli.models.masks import Mask
from rampcli.parallel.context import pieces_of, split_sequence
from rampcli.parallel.fsdp import replicate, shard_over_data_ranks
from rampcli.parallel.mesh import CONTEXT, DATA, PIPELINE, REPLICATE, TENSOR, Meshes
from rampcli.parallel.pipeline import build_stages
from rampcli.parallel.tensor import split_layers
from rampcli.settings.config import Config
from rampcli.settings.trainer import ActivationCheckpointing

RowsOf = Callable[[Decoder, str, int, int], Tensor]
"""Takes a model, the name of a parameter, a first row and a number of rows; returns these rows."""
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._efficient_attention_forward.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.rampcli.attend_in_tiles.default,
    torch.ops.higher_order.flex_attention,
]
"""Operations whose outputs `selective` keeps: matrix products and attention (arXiv 2205.05198)."""


def build_parts(
    config: Config,
    meshes: Meshes,
    device: torch.device,
    rows_of: RowsOf | None = None,
    *,
    filled: bool = True,
) -> list[Decoder]:
    """Returns this rank's parts of the model.

    They are split before memory is allocated, so no rank ever holds more than its part.

    Args:
        rows_of: source of the weights. None draws the initial weights of `config.seed`.
        filled: give the weights their values. Pass False before loading a checkpoint: drawing the
            weights of a large model takes long.
    """
    parts = build_stages(config, rank=meshes.rank(PIPELINE))
    for part in parts:
        split_layers(part, meshes.data[TENSOR])
        part.tie()
        split_sequence(part, meshes.data[CONTEXT])
        round_factors(part.layers, config.trainer.matmul_precision, device)
        recompute_activations(part.layers.values(), config.trainer.activation_checkpointing)
        if config.trainer.compile:
            compile_layers(part.layers.values())
        is_wrapped = needs_fsdp(config, meshes.size(DATA))
        if is_wrapped:
            shard_over_data_ranks(part, meshes.weights, config.trainer.precision)
        part.to_empty(device=device)
        part.tie()  # to_empty gave each of the two names memory of its own
        if not is_wrapped:
            replicate(part, meshes.weights[REPLICATE])
        if filled:
            fill_weights(part, rows_of or partial(initial_rows, seed=config.seed))
        else:
            part.fill_buffers()
        part.positions = pieces_of(part.positions, meshes.data[CONTEXT], dim=0)
    return parts


@torch.no_grad()
def fill_weights(model: Decoder, rows_of: RowsOf) -> None:
    """Fills parameters and buffers in place. `rows_of` is asked for this rank's rows only."""
    for name, parameter in model.named_parameters():
        shard = shard_of(name, parameter)
        if not shard.values.numel():
            continue
        rows = rows_of(model, name, shard.offsets[0], len(shard.values))
        ranges = zip(shard.offsets[1:], shard.values.shape[1:], strict=True)
        columns = tuple(slice(offset, offset + size) for offset, size in ranges)
        shard.values.copy_(rows[(slice(None), *columns)])
    model.fill_buffers()


def recompute_activations(blocks: Iterable[nn.Module], mode: ActivationCheckpointing) -> None:
    """Applies activation checkpointing (arXiv 1604.06174) to blocks, in place.

    The backward pass recomputes activations. Gradients do not change.
    """
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, **options)


def compile_layers(blocks: Iterable[nn.Module]) -> None:
    """Compiles the forward passes of blocks in place, each when it is first called.

    Blocks share code and shapes, so one graph serves all of them.

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
        mask: Mask = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        if cache is not None:
            return eager(hidden, rotation, mask, cache)
        # The embedding of tensor-parallel ranks returns a subclass of tensors, which is not waited
        # for yet. A compiled layer would take it, and drop the gradient of the embedding.
        if type(hidden) is not Tensor:
            hidden = hidden.clone()
        return compiled(hidden, rotation, mask)

    return forward
