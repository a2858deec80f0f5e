"""Which ranks hold a weight, and how: DTensors know, and replicated plain weights are told."""

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

REPLICAS = "_replica_mesh"
"""Attribute of a plain weight of which replicas hold copies."""


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
