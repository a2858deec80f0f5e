"""Data parallelism: replicated, sharded (FSDP2), or sharded within replicated groups (HSDP)."""

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rampcli.config.schema.trainer import Precision
from rampcli.models.decoder import Decoder
from rampcli.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR
from rampcli.parallel.overlap import collectives_of, set_collectives

POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def shard_over_data_ranks(model: Decoder, weights: DeviceMesh, precision: Precision) -> None:
    """Shards a decoder, in place. Does nothing on a single rank in fp32.

    The weights of each block are gathered together, and their gradients are reduced together. So
    are those of the embeddings, and those of the last norm and the output projection. Tied weights
    belong to both, so these are then one group.

    Args:
        model: this rank's pipeline stage, after tensor parallelism was applied.
        weights: `Meshes.weights`. With shard groups of one rank, the model is only replicated.
        precision: type of the gathered weights; gradients are reduced in fp32.
    """
    replicas, shards = weights[REPLICATE].size(), weights[SHARD].size()
    # FSDP is also needed with tensor parallelism alone: it reduces the partial gradients of weights
    # that tensor ranks replicate, such as norms.
    if replicas * shards * weights[TENSOR].size() == 1 and precision == "fp32":
        return
    shard = partial(
        fully_shard,
        mesh=weights[SHARD] if replicas == 1 else weights[REPLICATE, SHARD],
        mp_policy=POLICIES[precision],
    )
    # A pipeline stage uses its weights for every micro batch, so it keeps them gathered.
    reshard = weights[PIPELINE].size() == 1
    groups: list[Any] = list(model.layers.values())
    for block in model.layers.values():
        shard(block, reshard_after_forward=reshard)
    if not model.model.tie_embeddings:
        if embeddings := _built(model.embedding, model.position_embedding):
            shard(embeddings, reshard_after_forward=reshard)
            groups.insert(0, embeddings[0])
            # The gradient of a table does not depend on its values.
            embeddings[0].set_unshard_in_backward(False)
        if head := _built(model.norm, model.output):
            # The backward pass uses them first.
            shard(head, reshard_after_forward=False)
            groups.append(head[0])
    shard(model, reshard_after_forward=False)
    if weights.device_type == "cpu":
        for module, gather, reduce in collectives_of(model, weights):
            set_collectives(module, gather, reduce)
        for group, following in pairwise(groups):
            group.set_modules_to_forward_prefetch([following])


def _built(*modules: nn.Module | None) -> list[Any]:
    return [module for module in modules if module is not None]


def free_gathered_weights(model: nn.Module) -> None:
    """Keeps only this rank's shards. Call it after a forward pass without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def set_gradient_reduction(
    model: nn.Module, *, last_micro_batch: bool, each: bool, over_replicas: bool = True
) -> None:
    """Sets whether the next backward pass reduces gradients over the data-parallel ranks.

    Args:
        model: the model; nothing happens if it is not sharded.
        last_micro_batch: True for the last micro batch of a step, which always reduces.
        each: reduce after every micro batch. Replicas still all-reduce after the last one only:
            until then, each of them sums its own shards.
        over_replicas: all-reduce gradients over replicas too. Without it, replicas have different
            gradients, which only measurements of time may use.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_micro_batch or each)
        model.set_requires_all_reduce(last_micro_batch and over_replicas)
        model.set_is_last_backward(last_micro_batch)
