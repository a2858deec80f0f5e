"""Whole models from a model that is split over ranks."""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rampcli.models.decoder import Decoder, build_decoder
from rampcli.parallel.fsdp import free_gathered_weights
from rampcli.parallel.mesh import CONTEXT, DATA, PIPELINE, TENSOR, Meshes
from rampcli.parallel.pipeline import build_stages
from rampcli.settings.config import Config


def is_split(parts: Sequence[Decoder]) -> bool:
    """Returns whether the parts of this rank are not the whole model, in tensors of its own."""
    return not (parts[0].is_first and parts[-1].is_last) or any(
        isinstance(parameter, DTensor) for part in parts for parameter in part.parameters()
    )


def plain_model(trained: Decoder, config: Config) -> Decoder:
    """Returns a plain model that shares the weights of a whole one.

    Layers of the trained model may be compiled, or recompute their activations.
    """
    model = build_decoder(config.model, sequence_length=config.data.sequence_length)
    weights = {name: weight.detach() for name, weight in trained.named_parameters()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.requires_grad_(False)
    model.tie()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=trained.positions.device))
    model.fill_buffers()
    return model


@torch.no_grad()
def whole_weights(model: Decoder, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields the whole weights of a model that may be sharded. Every rank iterates over all."""
    free_gathered_weights(model)
    for parameter in model.parameters():
        yield _whole(parameter).to(dtype)


@torch.no_grad()
def copy_to_rank_0(
    parts: Sequence[Decoder], meshes: Meshes, config: Config, into: Decoder | None
) -> None:
    """Copies the weights of a model that is split to a whole model on rank 0.

    Every rank calls this. A rank holds no more than one whole tensor at a time, besides `into`.

    Args:
        into: the whole model on rank 0, None on other ranks.
    """
    for part in parts:
        free_gathered_weights(part)
    mine = {name: weight for part in parts for name, weight in part.stage_parameters().items()}
    copies = {} if into is None else dict(into.named_parameters())
    # One rank of each stage sends to rank 0: the one with which it forms a pipeline.
    pipeline = meshes.data[PIPELINE].get_group()
    is_in_pipeline = meshes.rank(DATA) == meshes.rank(CONTEXT) == meshes.rank(TENSOR) == 0
    stages = {
        name: rank
        for rank in range(meshes.size(PIPELINE))
        for part in build_stages(config, rank=rank)
        for name in part.stage_parameters()
    }
    for name, stage in stages.items():  # in one order on all ranks
        if stage == meshes.rank(PIPELINE):
            weight = _whole(mine[name])
            if into is not None:
                copies[name].copy_(weight)
            elif is_in_pipeline and stage > 0:
                dist.send(weight.contiguous(), group=pipeline, group_dst=0)
        elif into is not None:
            dist.recv(copies[name], group=pipeline, group_src=stage)


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
