"""Brings sharded matrices to one rank each, their owner, and shards what the owner returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement

from rampcli.models.parts import Shape

Coordinates = tuple[int, ...]
"""Place of a rank in a mesh; `()` without a mesh."""


@dataclass(frozen=True, slots=True)
class MatrixStack:
    """Matrices of one shape that are sharded in one way.

    Attributes:
        shape: [matrices, rows, columns], of the whole stack.
        placements: placements of each matrix on the mesh.
    """

    shape: Shape
    placements: Sequence[Placement]


class Exchange:
    """Exchanges stacks between the ranks of a mesh, each of which owns one stack or none.

    A rank sends its shard of a stack to the owner alone, and receives its shard of the result.
    Replicas own different stacks, and broadcast the results to each other. All axes are exchanged
    one after another, so that no process groups are needed but those of the mesh.

    Args:
        mesh: the mesh of the matrices, or None if they are not sharded. Each axis either shards or
            replicates all of them. An axis shards the shards of the axes after it, as FSDP2 does
            with tensor parallelism.
        stacks: by owner, in the same order on all ranks.
        dtype: type of the numbers that are exchanged.
        is_on: whether the ranks exchange. Otherwise, this rank takes zeros in place of the others'
            numbers, and needs no other rank.
    """

    def __init__(
        self,
        mesh: DeviceMesh | None,
        stacks: Mapping[Coordinates, MatrixStack],
        dtype: torch.dtype,
        *,
        is_on: bool,
    ) -> None:
        self.stacks = stacks
        self.is_on = is_on
        self.me: Coordinates = ()
        self.axes: list[int] = []
        self.replicated: set[int] = set()
        if mesh is not None:
            self.sizes, self.groups = mesh.shape, mesh.get_all_groups()
            self.me = tuple(mesh.get_coordinate() or ())
            self.axes = [axis for axis, size in enumerate(self.sizes) if size > 1]
            placements = next(iter(stacks.values())).placements
            self.replicated = {axis for axis in self.axes if placements[axis].is_replicate()}
            self.nothing = torch.empty(0, dtype=dtype, device=mesh.device_type)

    def apply(
        self,
        function: Callable[[Tensor], Tensor],
        shards: Iterable[tuple[Coordinates, Tensor]],
    ) -> dict[Coordinates, Tensor]:
        """Calls a function of whole stacks on each owner, and shards the results.

        Args:
            function: returns a stack of the same shape.
            shards: each owner, and this rank's shard of its stack.

        Returns:
            This rank's shard of each result, by owner.
        """
        held = {
            owner: shard
            for owner, shard in shards
            if all(owner[axis] == self.me[axis] for axis in self.replicated)
        }
        for axis in self.axes:
            if axis not in self.replicated:
                held = self._gather(axis, held)
        held = {owner: function(stack) for owner, stack in held.items()}
        for axis in reversed(self.axes):
            held = self._scatter(axis, held)
        return held

    def _gather(self, axis: int, held: Mapping[Coordinates, Tensor]) -> dict[Coordinates, Tensor]:
        """Joins the shards of the ranks along an axis, each stack on one of these ranks.

        It is the rank with the owner's coordinate on the axis. After all axes, it is the owner.

        Args:
            held: this rank's shards, by owner.

        Returns:
            The stacks that this rank has joined, by owner. The axis does not shard them any more.
        """
        by_peer = self._by_peer(held, axis)
        mine = by_peer[self.me[axis]]
        peers = range(self.sizes[axis])
        outgoing = [[held[owner] for owner in owners] for owners in by_peer]
        shapes = [[self._shape(owner, axis, peer) for owner in mine] for peer in peers]
        pieces = self._all_to_all(outgoing, shapes, axis)
        return {
            owner: torch.cat(of_owner, dim=self._dim(owner, axis))
            for owner, *of_owner in zip(mine, *pieces, strict=True)
        }

    def _scatter(self, axis: int, held: Mapping[Coordinates, Tensor]) -> dict[Coordinates, Tensor]:
        """Gives each rank along an axis its shard of the stacks that one of them holds.

        This undoes `_gather`. If the axis replicates, each rank gets a copy of the stack.

        Args:
            held: the stacks that this rank holds, by owner.

        Returns:
            The shards or copies that this rank gets, by owner.
        """
        by_peer = self._by_peer(
            (owner for owner in self.stacks if owner[:axis] == self.me[:axis]), axis
        )
        me, peers = self.me[axis], range(self.sizes[axis])
        shapes = [[self._shape(owner, axis, me) for owner in owners] for owners in by_peer]
        if axis in self.replicated:
            pieces = self._broadcast(list(held.values()), shapes, axis)
        else:
            dims = [self._dim(owner, axis) for owner in held]
            outgoing = [
                [
                    stack.narrow(dim, *_part(stack.shape[dim], self.sizes[axis], peer))
                    for stack, dim in zip(held.values(), dims, strict=True)
                ]
                for peer in peers
            ]
            pieces = self._all_to_all(outgoing, shapes, axis)
        return {
            owner: piece
            for owners, from_peer in zip(by_peer, pieces, strict=True)
            for owner, piece in zip(owners, from_peer, strict=True)
        }

    def _by_peer(self, owners: Iterable[Coordinates], axis: int) -> list[list[Coordinates]]:
        by_peer: list[list[Coordinates]] = [[] for _ in range(self.sizes[axis])]
        for owner in owners:
            by_peer[owner[axis]].append(owner)
        return by_peer

    def _dim(self, owner: Coordinates, axis: int) -> int:
        """Returns the dimension of an owner's stack that an axis shards."""
        return 1 + self.stacks[owner].placements[axis].dim  # type: ignore[attr-defined,no-any-return]

    def _shape(self, owner: Coordinates, axis: int, peer: int) -> Shape:
        """Returns the shape of the shards that `peer` has, along an axis, of an owner's stack.

        Other axes have this rank's place, and those before `axis` do not shard.
        """
        shape = list(self.stacks[owner].shape)
        for each in reversed([each for each in self.axes if each >= axis]):
            if each not in self.replicated:
                dim = self._dim(owner, each)
                place = peer if each == axis else self.me[each]
                _, shape[dim] = _part(shape[dim], self.sizes[each], place)
        return tuple(shape)

    def _all_to_all(
        self, outgoing: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[Shape]], axis: int
    ) -> list[list[Tensor]]:
        """Sends tensors to each peer along an axis, and returns those that each has sent.

        Args:
            shapes: shapes of the tensors that each peer sends.
        """
        sent = self._flat(one for each in outgoing for one in each)
        arriving = [sum(map(prod, each)) for each in shapes]
        received = self.nothing.new_zeros(sum(arriving))
        leaving = [sum(one.numel() for one in each) for each in outgoing]
        if self.is_on:
            dist.all_to_all_single(received, sent, arriving, leaving, group=self.groups[axis])
        return [
            _views(flat, each)
            for flat, each in zip(received.split_with_sizes(arriving), shapes, strict=True)
        ]

    def _broadcast(
        self, outgoing: Iterable[Tensor], shapes: Sequence[Sequence[Shape]], axis: int
    ) -> list[list[Tensor]]:
        """Sends tensors to all peers along an axis, and returns what each of them has sent.

        Args:
            shapes: shapes of the tensors that each peer sends.
        """
        arrived = []
        for peer, each in enumerate(shapes):
            if peer == self.me[axis]:
                flat = self._flat(outgoing)
            else:
                flat = self.nothing.new_zeros(sum(map(prod, each)))
            if self.is_on and flat.numel() > 0:
                dist.broadcast(flat, group_src=peer, group=self.groups[axis])
            arrived.append(_views(flat, each))
        return arrived

    def _flat(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([self.nothing, *(tensor.flatten() for tensor in tensors)])


def _part(length: int, parts: int, index: int) -> tuple[int, int]:
    """Returns start and length of a part, where the last parts may be shorter, as torch chunks."""
    each = -(-length // parts)
    start = min(length, index * each)
    return start, min(each, length - start)


def _views(flat: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    parts = flat.split_with_sizes(list(map(prod, shapes)))
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
