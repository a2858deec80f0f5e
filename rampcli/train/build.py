"""From settings to a model on its ranks."""

from collections.abc import Callable

import torch
from torch import Tensor

from rampcli.checkpoint.shards import block_of
from rampcli.config.schema import Config
from rampcli.models.compiled import compile_layers
from rampcli.models.decoder import Decoder
from rampcli.models.initialize import initial_rows
from rampcli.models.recompute import recompute_activations
from rampcli.parallel.context import pieces_of, split_sequence
from rampcli.parallel.fsdp import shard_over_data_ranks
from rampcli.parallel.mesh import CONTEXT, PIPELINE, TENSOR, Meshes
from rampcli.parallel.pipeline import layers_of_rank
from rampcli.parallel.tensor import split_layers

RowsOf = Callable[[Decoder, str, int, int], Tensor]
"""Of a model, a parameter's name, a first row and a number of rows: these rows with all their columns."""


def build_parts(
    config: Config,
    meshes: Meshes,
    device: torch.device,
    rows_of: RowsOf | None = None,
    *,
    filled: bool = True,
) -> list[Decoder]:
    """This rank's parts of the model, split before they are given memory, so that no rank holds the model whole.

    Args:
        config: what to build.
        meshes: the ranks that it is split over.
        device: where this rank's part lives.
        rows_of: where the weights come from; the initial weights of `config.seed`, if None.
        filled: False leaves the weights undefined, for a checkpoint that is to be loaded: drawing them takes a large model long.
    """
    parallel = config.parallel
    layers = layers_of_rank(
        config.model.num_layers,
        ranks=parallel.pipeline_parallel_size,
        rank=meshes.rank(PIPELINE),
        parts=parallel.virtual_pipeline_parallel_size,
    )
    parts = []
    for here in layers:
        with torch.device("meta"):
            part = Decoder(config.model, sequence_length=config.data.sequence_length, layers=here)
        split_layers(part, meshes.data[TENSOR])
        part.tie()
        split_sequence(part, meshes.data[CONTEXT])
        recompute_activations(part.layers.values(), config.trainer.activation_checkpointing)
        if config.trainer.compile:
            compile_layers(part.layers.values())
        shard_over_data_ranks(part, part.layers.values(), meshes.weights, config.trainer.precision)
        part.to_empty(device=device)
        part.tie()  # memory was given to each of two names
        if filled:
            fill_weights(part, rows_of or initial_weights(config.seed))
        else:
            part.fill_buffers()
        part.positions = pieces_of(part.positions, meshes.data[CONTEXT], dim=0)
        parts.append(part)
    return parts


def initial_weights(seed: int) -> RowsOf:
    """The weights of a model that has not been trained."""

    def rows_of(model: Decoder, name: str, first: int, rows: int) -> Tensor:
        return initial_rows(model, name, first=first, rows=rows, seed=seed)

    return rows_of


@torch.no_grad()
def fill_weights(model: Decoder, rows_of: RowsOf) -> None:
    """Give every parameter its value, and compute the buffers. Of a sharded parameter only the rows that this rank has are asked for."""
    for name, parameter in model.named_parameters():
        block = block_of(name, parameter)
        if block.values.numel():
            inside = tuple(
                slice(offset, offset + size)
                for offset, size in zip(block.offsets, block.values.shape, strict=True)
            )
            block.values.copy_(
                rows_of(model, name, block.offsets[0], len(block.values))[
                    (slice(None), *inside[1:])
                ]
            )
    model.fill_buffers()
