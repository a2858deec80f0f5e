"""The data-parallel axis: parameters, gradients and optimiser state sharded over the ranks (FSDP2)."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rampcli.config.schema import Precision

POLICIES = {
    Precision.fp32: MixedPrecisionPolicy(),
    Precision.bf16: MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


def shard_over_data_ranks(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh, precision: Precision) -> None:
    """Shard each block, and the rest of the model, in place. One rank in fp32 has nothing to shard and stays plain."""
    if mesh.size() == 1 and precision is Precision.fp32:
        return
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=POLICIES[precision])
    fully_shard(model, mesh=mesh, mp_policy=POLICIES[precision])


def reduce_gradients_on(model: nn.Module, *, last_micro_batch: bool) -> None:
    """Leave gradients unreduced until the last micro batch of a step: one reduction per step."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_micro_batch)
        model.set_is_last_backward(last_micro_batch)
