"""Data parallelism: replicated, sharded (FSDP2), or sharded within replicated groups (HSDP)."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rampcli.config.schema.trainer import Precision
from rampcli.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR

POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def shard_over_data_ranks(
    model: nn.Module, blocks: Iterable[nn.Module], weights: DeviceMesh, precision: Precision
) -> None:
    """Shards each block and the rest of the model, in place.

    Does nothing on a single rank in fp32.

    Args:
        model: this rank's pipeline stage, after tensor parallelism was applied.
        blocks: its transformer blocks, which are gathered one at a time.
        weights: `Meshes.weights`. With shard groups of one rank, the model is only replicated.
        precision: type of the gathered weights; gradients are reduced in fp32.
    """
    replicas, shards = weights[REPLICATE].size(), weights[SHARD].size()
    # FSDP is also needed with tensor parallelism alone: it reduces the partial gradients of weights
    # that tensor ranks replicate, such as norms.
    if replicas * shards * weights[TENSOR].size() == 1 and precision == "fp32":
        return
    mesh = weights[SHARD] if replicas == 1 else weights[REPLICATE, SHARD]
    # A pipeline stage uses its blocks for every micro batch, so it keeps them gathered.
    reshard = weights[PIPELINE].size() == 1
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=POLICIES[precision], reshard_after_forward=reshard)
    # The remaining parameters stay gathered: the backward pass uses them first.
    fully_shard(model, mesh=mesh, mp_policy=POLICIES[precision], reshard_after_forward=False)


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
