"""Llama 3 70B as one rank of 1024 builds it."""

import resource
from typing import Any

import torch
import torch.distributed as dist

from rampcli import llm
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts


def build_part(rank: int) -> dict[str, Any]:
    """Returns the number of parameters, those of this rank, and the peak memory of building it.

    Peak memory is that of the process, which has to be a new one.
    """
    # Imported here, as it costs a second.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    config = llm.llama3_70b.pretrain_recipe()
    config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size = 1, 1
    config.parallel.virtual_pipeline_parallel_size, config.parallel.context_parallel_size = 1, 1
    dist.init_process_group("fake", rank=rank, world_size=1024, store=FakeStore())
    meshes = build_meshes(torch.device("cpu"), config.parallel)
    before_bytes = _peak_bytes()
    (model,) = build_parts(config, meshes, torch.device("cpu"))
    most_bytes = _peak_bytes() - before_bytes
    shards = [parameter.to_local() for parameter in model.parameters()]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held": sum(shard.numel() for shard in shards),
        "most_bytes": most_bytes,
        "filled": all(shard.isfinite().all().item() for shard in shards),
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
