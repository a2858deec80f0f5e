"""Blocks: the boxes that ranks hold of tensors which may be split over them, and which rank saves what several hold."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Block:
    """A box of a tensor.

    Attributes:
        name: of the tensor.
        offsets: where in the tensor the box begins, for each of its dimensions.
        values: the box, on any device.
        whole: shape of the tensor.
    """

    name: str
    offsets: tuple[int, ...]
    values: Tensor
    whole: tuple[int, ...]


def block_of(name: str, tensor: Tensor) -> Block:
    """What this rank holds of a tensor; all of it, unless it is split."""
    if not isinstance(tensor, DTensor):
        return Block(name, (0,) * tensor.ndim, tensor.detach(), tuple(tensor.shape))
    with torch.no_grad():
        local = tensor.to_local()
    (place,) = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]  # how distributed checkpoints ask for its place
    return Block(name, tuple(place.offsets), local, tuple(tensor.shape))


def blocks_to_save(tensors: Iterable[tuple[str, Tensor, Tensor]]) -> list[Block]:
    """This rank's blocks of what all ranks save, each of them on one rank, and about as many bytes on each.

    Every rank finds out the same without asking the others: it knows on which of them a copy of each of its blocks is.

    Args:
        tensors: names, tensors, and the parameters that they belong to, which say on which ranks they are. Ranks that hold copies name
            the same tensors in the same order.
    """
    blocks: list[Block] = []
    loads: dict[tuple[int, ...], list[int]] = {}
    for name, tensor, parameter in tensors:
        axes, ranks, mine = _copies(tensor, parameter)
        load = loads.setdefault(axes, [0] * ranks)
        chosen = min(range(ranks), key=load.__getitem__)
        load[chosen] += tensor.numel()
        if chosen == mine and (block := block_of(name, tensor)).values.numel():
            blocks.append(block)
    return blocks


def _copies(tensor: Tensor, parameter: Tensor) -> tuple[tuple[int, ...], int, int]:
    """The axes of its mesh along which a tensor is the same; how many ranks hold the same, and which of them this one is."""
    if not isinstance(parameter, DTensor):
        return (), 1, 0
    mesh = parameter.device_mesh
    if isinstance(tensor, DTensor):
        axes = tuple(
            axis for axis, placement in enumerate(tensor.placements) if placement.is_replicate()
        )
    else:  # a number that an optimiser counts for the whole parameter
        axes = tuple(range(mesh.ndim))
    ranks, mine = 1, 0
    for axis in axes:
        ranks, mine = ranks * mesh.size(axis), mine * mesh.size(axis) + mesh.get_local_rank(axis)
    return axes, ranks, mine


class HostCopies:
    """Copies of blocks in the host's memory, which is kept from one time to the next."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def of(self, tensors: Sequence[tuple[str, Tensor, Tensor]]) -> Callable[[], list[Block]]:
        """What copies this rank's `blocks_to_save`, once it is called, from any thread; until it returns they have to stay as they are."""
        device = next((tensor.device for _, tensor, _ in tensors if tensor.is_cuda), None)
        if device is None:
            return lambda: self._copies(tensors)
        there = torch.cuda.current_stream(device).record_event()

        def copy() -> list[Block]:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                stream.wait_event(there)
                copies = self._copies(tensors)
            stream.synchronize()
            return copies

        return copy

    def _copies(self, tensors: Sequence[tuple[str, Tensor, Tensor]]) -> list[Block]:
        blocks = blocks_to_save(tensors)
        return [
            replace(block, values=self._memory_for(block).copy_(block.values, non_blocking=True))
            for block in blocks
        ]

    def _memory_for(self, block: Block) -> Tensor:
        if block.name not in self._memory:
            self._memory[block.name] = torch.empty(
                block.values.shape, dtype=block.values.dtype, pin_memory=block.values.is_cuda
            )
        return self._memory[block.name]


class Tiling:
    """Finds out whether boxes tile a tensor: they cover each of its numbers once, and nothing outside of it.

    As many boxes as there are shards are counted in one pass, in any number of dimensions. Each corner of a box has a sign, which says
    how the count of boxes changes there. The boxes tile the tensor exactly if their corners, added up, are those of the tensor.
    """

    def __init__(self, whole: tuple[int, ...]) -> None:
        self._left: dict[tuple[int, ...], int] = {}
        self._count((0,) * len(whole), whole, 1)

    def lay(self, offsets: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Add a box."""
        self._count(offsets, shape, -1)

    @property
    def is_exact(self) -> bool:
        """Whether the boxes so far tile the tensor."""
        return not self._left

    def _count(self, offsets: tuple[int, ...], shape: tuple[int, ...], sign: int) -> None:
        corners: list[tuple[tuple[int, ...], int]] = [((), sign)]
        for first, size in zip(offsets, shape, strict=True):
            corners = [
                ((*at, place), turn)
                for at, now in corners
                for place, turn in ((first, now), (first + size, -now))
            ]
        for corner, turn in corners:
            if count := self._left.pop(corner, 0) + turn:
                self._left[corner] = count


def overlap(
    block: Block, offsets: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a block and another box of its tensor are the same numbers: as slices of the block, and of the box; None where nowhere."""
    ours, theirs = [], []
    for start, size, other_start, other_size in zip(
        block.offsets, block.values.shape, offsets, shape, strict=True
    ):
        first, last = max(start, other_start), min(start + size, other_start + other_size)
        if first >= last:
            return None
        ours.append(slice(first - start, last - start))
        theirs.append(slice(first - other_start, last - other_start))
    return tuple(ours), tuple(theirs)
