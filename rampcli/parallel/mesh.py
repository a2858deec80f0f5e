"""Device meshes, and which of their ranks hold a weight.

The tensor axis is innermost and the pipeline axis outermost, so that the axis that communicates
most spans the nearest ranks.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from rampcli.settings.parallel import ParallelConfig

# torch 2.14 made this function public.
set_group_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
DATA, CONTEXT = "data", "context"
REPLICAS = "_replica_mesh"
"""Attribute of a plain weight of which replicas hold copies."""


@dataclass(frozen=True, slots=True)
class Meshes:
    """Two meshes over the same ranks.

    Attributes:
        weights: pipeline x replicate x shard x tensor: which rank holds which part of the weights.
            Ranks that share a sequence hold the same layers: the context axis is in `shard`.
        data: pipeline x data x context x tensor: which rank reads which part of which samples.
        hosts: all ranks, to exchange numbers of the host. Its ranks do not wait for their GPUs.
    """

    weights: DeviceMesh
    data: DeviceMesh
    hosts: dist.ProcessGroup

    def rank(self, axis: str) -> int:
        """Returns this rank's index along an axis of `data`."""
        return self.data.get_local_rank(axis)

    def size(self, axis: str) -> int:
        """Returns the number of ranks along an axis of `data`."""
        return self.data.size(self.data.mesh_dim_names.index(axis))  # type: ignore[union-attr]

    @property
    def data_ranks(self) -> list[int]:
        """Data-parallel rank of each rank."""
        ranks, axis = self.data.mesh, self.data.mesh_dim_names.index(DATA)  # type: ignore[union-attr]
        return [int((ranks == rank).nonzero()[0, axis]) for rank in range(ranks.numel())]

    @property
    def gradient_ranks(self) -> int:
        """Number of ranks whose gradients sum to the gradient of the global batch."""
        return self.size(DATA) * self.size(CONTEXT)

    @property
    def counts_samples(self) -> bool:
        """True on the first of the ranks that read the same samples; it reports for them."""
        return self.rank(PIPELINE) == self.rank(CONTEXT) == self.rank(TENSOR) == 0

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long collectives over all ranks, or along an axis, wait for the slowest rank.

        A rank of gloo notices at once if another one has ended. Ranks of NCCL are ended by the
        program that started them.
        """
        for group in (
            dist.group.WORLD,
            self.hosts,
            *self.weights.get_all_groups(),
            *self.data.get_all_groups(),
        ):
            set_group_timeout(timeout, group)


def world_timeout() -> timedelta:
    """Returns how long collectives over all ranks wait for the slowest rank."""
    world = dist.group.WORLD
    assert world is not None
    timeout: timedelta = world._get_backend(world._device_types[0]).options._timeout
    return timeout


def build_meshes(
    device: torch.device, parallel: ParallelConfig, *, timeout: timedelta | None = None
) -> Meshes:
    """Returns the meshes over all ranks of the process group.

    Args:
        parallel: sizes of the axes; their product divides the number of ranks.
        timeout: how long their collectives wait, as of `Meshes.set_timeout`. None leaves the times
            that torch sets.
    """
    pipeline, tensor = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    context = parallel.context_parallel_size
    data = dist.get_world_size() // (pipeline * context * tensor)
    shard = parallel.data_parallel_shard_size or data
    weights = init_device_mesh(
        device.type,
        (pipeline, data // shard, shard * context, tensor),
        mesh_dim_names=(PIPELINE, REPLICATE, SHARD, TENSOR),
    )
    ranks = weights.mesh.view(pipeline, data, context, tensor)
    world = dist.group.WORLD
    assert world is not None
    hosts = (
        dist.new_group(backend="gloo", timeout=timeout) if dist.get_backend() == "nccl" else world
    )
    meshes = Meshes(weights=weights, data=_with_groups_of(weights, ranks), hosts=hosts)
    if timeout is not None:
        meshes.set_timeout(timeout)
    return meshes


def _with_groups_of(mesh: DeviceMesh, ranks: Tensor) -> DeviceMesh:
    """Returns the mesh `Meshes.data`. It shares the process groups of `Meshes.weights`.

    NCCL holds buffers on the GPU for each group, so an axis gets groups of its own only if neither
    an axis of the other mesh nor the whole run has the same ones.

    Args:
        ranks: rank at each place, int64 [pipeline, data, context, tensor].
    """
    known: dict[Any, Any] = {
        _ranks_along(mesh.mesh, axis): mesh.get_group(axis) for axis in range(mesh.ndim)
    }
    known[(tuple(range(ranks.numel())),)] = dist.group.WORLD
    groups = []
    for axis in range(ranks.ndim):
        along = _ranks_along(ranks, axis)
        if along not in known:
            known[along], _ = dist.new_subgroups_by_enumeration(list(map(list, along)))  # type: ignore[no-untyped-call]
        groups.append(known[along])
    return DeviceMesh.from_group(
        groups, mesh.device_type, ranks, mesh_dim_names=(PIPELINE, DATA, CONTEXT, TENSOR)
    )


def _ranks_along(ranks: Tensor, axis: int) -> tuple[tuple[int, ...], ...]:
    rows = ranks.movedim(axis, -1).reshape(-1, ranks.shape[axis]).tolist()
    return tuple(sorted(map(tuple, rows)))


def set_replicas(weight: Tensor, mesh: DeviceMesh) -> None:
    """Notes that each rank of a mesh with one axis holds a copy of a plain weight."""
    setattr(weight, REPLICAS, mesh)


def layout_of(weight: Tensor) -> tuple[DeviceMesh | None, tuple[Placement, ...]]:
    """Returns the mesh of the ranks that hold a weight, and its placement along each axis.

    A weight that only this rank holds has no mesh.
    """
    if isinstance(weight, DTensor):
        return weight.device_mesh, tuple(weight.placements)
    mesh = getattr(weight, REPLICAS, None)
    return mesh, () if mesh is None else (Replicate(),)


def is_first_copy(weight: Tensor) -> bool:
    """Returns whether this rank is the first of those that hold the same shard of a weight."""
    mesh, placements = layout_of(weight)
    places = zip(placements, mesh.get_coordinate() or () if mesh else (), strict=True)
    return all(place == 0 for placement, place in places if placement.is_replicate())


def local_part(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor: the whole tensor unless it is a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
