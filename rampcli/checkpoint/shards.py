"""Shards of tensors: which part of a tensor a rank holds, and which rank saves it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rampcli.parallel.mesh import layout_of

NamedTensor = tuple[str, Tensor, Tensor]
"""A name, a tensor, and the parameter that it belongs to: itself, or the one whose state it is."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangular part of a tensor.

    Attributes:
        offsets: first index of the shard in each dimension of the tensor.
        values: the numbers of the shard, on any device.
    """

    name: str
    offsets: tuple[int, ...]
    values: Tensor
    tensor_shape: tuple[int, ...]


def shard_of(name: str, tensor: Tensor) -> Shard:
    """Returns the shard of a tensor on this rank: the whole tensor unless it is a DTensor."""
    if not isinstance(tensor, DTensor):
        return Shard(name, (0,) * tensor.ndim, tensor.detach(), tuple(tensor.shape))
    with torch.no_grad():
        local = tensor.to_local()
    # torch.distributed.checkpoint asks a DTensor for its offsets in this way.
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return Shard(name, tuple(chunk.offsets), local, tuple(tensor.shape))


def shards_to_save(tensors: Iterable[NamedTensor]) -> list[Shard]:
    """Returns the shards that this rank saves.

    Each shard is saved by one of the ranks that hold it, and ranks save about as many bytes each.
    They agree without communication, as each knows from the mesh which ranks hold copies of its
    shards.

    Args:
        tensors: the tensors to save. Ranks that hold copies list the same tensors in the same
            order.
    """
    shards: list[Shard] = []
    loads: dict[tuple[int, ...], list[int]] = {}
    for name, tensor, parameter in tensors:
        axes, ranks, this_rank = _replicas(tensor, parameter)
        load = loads.setdefault(axes, [0] * ranks)
        chosen = min(range(ranks), key=load.__getitem__)
        load[chosen] += tensor.numel()
        if chosen == this_rank and (shard := shard_of(name, tensor)).values.numel():
            shards.append(shard)
    return shards


def _replicas(tensor: Tensor, parameter: Tensor) -> tuple[tuple[int, ...], int, int]:
    """Returns a tensor's replicated mesh axes, the number of its copies, and this rank's copy."""
    mesh, _ = layout_of(parameter)
    if mesh is None:
        return (), 1, 0
    if isinstance(tensor, DTensor):
        axes = tuple(
            axis for axis, placement in enumerate(tensor.placements) if placement.is_replicate()
        )
    else:  # a replicated weight, or a state such as AdamW's step count: the same on all ranks
        axes = tuple(range(mesh.ndim))
    ranks, index = 1, 0
    for axis in axes:
        ranks, index = ranks * mesh.size(axis), index * mesh.size(axis) + mesh.get_local_rank(axis)
    return axes, ranks, index


class HostCopies:
    """Copies shards into host memory, which is reused from save to save."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def prepare(self, tensors: Sequence[NamedTensor]) -> Callable[[], list[Shard]]:
        """Returns a function that copies this rank's `shards_to_save`.

        Any thread may call it. The tensors must not change until it returns.
        """
        device = next((tensor.device for _, tensor, _ in tensors if tensor.is_cuda), None)
        if device is None:
            return lambda: self._copy(tensors)
        computed = torch.cuda.current_stream(device).record_event()

        def copy() -> list[Shard]:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                stream.wait_event(computed)
                copies = self._copy(tensors)
            stream.synchronize()
            return copies

        return copy

    def _copy(self, tensors: Sequence[NamedTensor]) -> list[Shard]:
        return [
            replace(shard, values=self._memory_for(shard).copy_(shard.values, non_blocking=True))
            for shard in shards_to_save(tensors)
        ]

    def _memory_for(self, shard: Shard) -> Tensor:
        if shard.name not in self._memory:
            self._memory[shard.name] = torch.empty(
                shard.values.shape, dtype=shard.values.dtype, pin_memory=shard.values.is_cuda
            )
        return self._memory[shard.name]


class Tiling:
    """Checks whether boxes tile a tensor: each number is in one box, and no box reaches outside.

    Boxes are counted in one pass, in any number of dimensions. Each corner of a box has a sign: how
    the number of boxes changes there. The boxes tile the tensor exactly if the signs of their
    corners add up to those of the tensor's corners.
    """

    def __init__(self, tensor_shape: tuple[int, ...]) -> None:
        self._unmatched: dict[tuple[int, ...], int] = {}
        self._count((0,) * len(tensor_shape), tensor_shape, 1)

    def add(self, offsets: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Adds a box."""
        self._count(offsets, shape, -1)

    @property
    def is_exact(self) -> bool:
        """Whether the boxes added so far tile the tensor."""
        return not self._unmatched

    def _count(self, offsets: tuple[int, ...], shape: tuple[int, ...], sign: int) -> None:
        corners: list[tuple[tuple[int, ...], int]] = [((), sign)]
        for first, size in zip(offsets, shape, strict=True):
            corners = [
                ((*corner, index), corner_sign)
                for corner, before in corners
                for index, corner_sign in ((first, before), (first + size, -before))
            ]
        for corner, corner_sign in corners:
            if count := self._unmatched.pop(corner, 0) + corner_sign:
                self._unmatched[corner] = count


def overlap(
    shard: Shard, offsets: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Returns the overlap of a shard and a box of the same tensor, or None if they do not overlap.

    The first slices index the shard, the second ones the box.
    """
    in_shard, in_box = [], []
    for start, size, box_start, box_size in zip(
        shard.offsets, shard.values.shape, offsets, shape, strict=True
    ):
        first, last = max(start, box_start), min(start + size, box_start + box_size)
        if first >= last:
            return None
        in_shard.append(slice(first - start, last - start))
        in_box.append(slice(first - box_start, last - box_start))
    return tuple(in_shard), tuple(in_box)
