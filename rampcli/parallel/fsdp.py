"""The data-parallel axis: replicated, sharded (FSDP2), or sharded within groups that are replicated."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rampcli.config.choices import Precision
from rampcli.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR

POLICIES = {
    Precision.fp32: MixedPrecisionPolicy(),
    Precision.bf16: MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def shard_over_data_ranks(
    model: nn.Module, blocks: Iterable[nn.Module], weights: DeviceMesh, precision: Precision
) -> None:
    """Shard each block, and the rest of the model, in place. One rank in fp32 has nothing to share and stays plain.

    Args:
        model: of this rank's pipeline stage; split by the tensor axis already.
        blocks: its layers, gathered one at a time.
        weights: `Meshes.weights`. Replicated ranks are groups of one that shards, and a reduction over the groups.
        precision: of what is gathered; gradients are reduced in fp32.
    """
    replicas, shards = weights[REPLICATE].size(), weights[SHARD].size()
    # A tensor axis leaves partial gradients of the weights that its ranks share; reducing those is done here too.
    if replicas * shards * weights[TENSOR].size() == 1 and precision is Precision.fp32:
        return
    mesh = weights[SHARD] if replicas == 1 else weights[REPLICATE, SHARD]
    # A pipeline stage comes back to its layers for every micro batch: gathering them once costs less than once for each.
    reshard = weights[PIPELINE].size() == 1
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=POLICIES[precision], reshard_after_forward=reshard)
    # What is left, the backward pass begins with.
    fully_shard(model, mesh=mesh, mp_policy=POLICIES[precision], reshard_after_forward=False)


def let_go(model: nn.Module) -> None:
    """After a forward pass that no backward pass follows: hold this rank's part alone again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def reduce_gradients_on(model: nn.Module, *, last_micro_batch: bool, each: bool) -> None:
    """Leave gradients unreduced until the last micro batch of a step, or reduce those of `each`."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_micro_batch or each)
        model.set_is_last_backward(last_micro_batch)
