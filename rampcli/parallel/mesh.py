"""The ranks as meshes. The tensor axis is innermost, the pipeline outermost: the busiest axis has the nearest ranks."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rampcli.config.schema import ParallelConfig

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
DATA, CONTEXT = "data", "context"


@dataclass(frozen=True, slots=True)
class Meshes:
    """The same ranks, seen in two ways.

    Attributes:
        weights: pipeline x replicate x shard x tensor: who holds which part of the weights. Ranks that share a sequence hold the same
            layers, so they share the weights too: a context axis is part of `shard`.
        data: pipeline x data x context x tensor: who reads which samples, and which part of them.
    """

    weights: DeviceMesh
    data: DeviceMesh

    def rank(self, axis: str) -> int:
        """This rank's place along an axis of `data`."""
        return self.data.get_local_rank(axis)

    def size(self, axis: str) -> int:
        """Ranks along an axis of `data`."""
        return self.data.size(self.data.mesh_dim_names.index(axis))  # type: ignore[union-attr]

    @property
    def data_ranks(self) -> list[int]:
        """The data-parallel rank of each rank."""
        ranks, axis = self.data.mesh, self.data.mesh_dim_names.index(DATA)  # type: ignore[union-attr]
        return [int((ranks == rank).nonzero()[0, axis]) for rank in range(ranks.numel())]

    @property
    def ranks_with_other_tokens(self) -> int:
        """Ranks whose gradients add up to that of the global batch."""
        return self.size(DATA) * self.size(CONTEXT)

    @property
    def reads_first(self) -> bool:
        """Whether this rank speaks for all that read the same samples."""
        return self.rank(PIPELINE) == self.rank(CONTEXT) == self.rank(TENSOR) == 0


def build_meshes(device: torch.device, parallel: ParallelConfig) -> Meshes:
    """The meshes over all ranks of the process group.

    Args:
        device: where they compute.
        parallel: sizes of the axes, whose product divides the ranks.
    """
    pipeline, context, tensor = (
        parallel.pipeline_parallel_size,
        parallel.context_parallel_size,
        parallel.tensor_parallel_size,
    )
    data = dist.get_world_size() // (pipeline * context * tensor)
    shard = parallel.data_parallel_shard_size or data
    weights = (pipeline, data // shard, shard * context, tensor)
    return Meshes(
        weights=init_device_mesh(
            device.type, weights, mesh_dim_names=(PIPELINE, REPLICATE, SHARD, TENSOR)
        ),
        data=init_device_mesh(
            device.type,
            (pipeline, data, context, tensor),
            mesh_dim_names=(PIPELINE, DATA, CONTEXT, TENSOR),
        ),
    )
