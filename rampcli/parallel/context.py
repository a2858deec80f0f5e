"""Context parallelism: splits every sequence over ranks, which all-gather its keys and values.

Each rank has one piece from the front and one from the back of the sequence, so that all ranks have
the same amount of work (arXiv 2407.21783, section 3.3.2).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from rampcli.models.decoder import Decoder
from rampcli.models.masks import Mask, build_mask

# torch 2.13 renamed these collectives.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def split_sequence(model: Decoder, mesh: DeviceMesh) -> None:
    """Makes attention work on this rank's pieces of each sequence, in place.

    Wraps the `core` of every module that has one. A core is a module that maps queries, keys,
    values and a mask to mixed values, as `rampcli.models.attention.CausalAttention` does.
    """
    if mesh.size() == 1:
        return
    model.mask = partial(build_masks_of_pieces, front_and_back(mesh))
    for module in list(model.modules()):
        if isinstance(core := getattr(module, "core", None), nn.Module):
            module.core = GatheredAttention(core, mesh)


def pieces_of(tensor: Tensor, mesh: DeviceMesh, *, dim: int) -> Tensor:
    """Returns this rank's pieces of a tensor, cut along the sequence dimension `dim`."""
    if mesh.size() == 1:
        return tensor
    pieces, rank = tensor.chunk(2 * mesh.size(), dim=dim), mesh.get_local_rank()
    return torch.cat([pieces[rank], pieces[-1 - rank]], dim=dim)


def front_and_back(mesh: DeviceMesh) -> tuple[int, int]:
    """Returns the numbers of this rank's pieces."""
    rank = mesh.get_local_rank()
    return rank, 2 * mesh.size() - 1 - rank


def build_masks_of_pieces(
    pieces: tuple[int, int],
    document_positions: Tensor | None,
    *,
    queries: int,
    sequence: int,  # noqa: ARG001
    **options: Any,
) -> Mask:
    """Returns the mask of each piece of this rank's queries.

    The arguments are those of `rampcli.models.masks.build_mask`, after the numbers of the pieces.
    """
    length = queries // 2
    positions = (None, None) if document_positions is None else document_positions.chunk(2, dim=1)
    return tuple(
        build_mask(
            places,
            queries=length,
            sequence=(piece + 1) * length,
            **options,
        )
        for piece, places in zip(pieces, positions, strict=True)
    )


class GatheredAttention(nn.Module):
    """Causal attention of this rank's queries over the keys and values of all ranks.

    Attributes:
        gathered_index: for each piece of the sequence, its index among the gathered pieces.
    """

    def __init__(self, core: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.core = core
        self.mesh = mesh
        ranks = mesh.size()
        order = [piece for rank in range(ranks) for piece in (rank, 2 * ranks - 1 - rank)]
        self.gathered_index = [order.index(piece) for piece in range(2 * ranks)]

    def forward(  # noqa: D102
        self, query: Tensor, key: Tensor, value: Tensor, masks: tuple[Any, Any]
    ) -> Tensor:
        gathered = AllGather.apply(torch.stack([key, value]), self.mesh.get_group())  # type: ignore[no-untyped-call]
        pieces = [piece for rank in gathered for piece in rank.chunk(2, dim=3)]
        keys, values = torch.cat([pieces[index] for index in self.gathered_index], dim=3)
        queries = query.chunk(2, dim=2)
        mixed = []
        for piece, part, mask in zip(front_and_back(self.mesh), queries, masks, strict=True):
            end = (piece + 1) * part.shape[2]
            mixed.append(self.core(part, keys[:, :, :end], values[:, :, :end], mask))
        return torch.cat(mixed, dim=2)


class AllGather(torch.autograd.Function):
    """Gathers a tensor [...] from all ranks into [ranks, ...].

    The backward pass reduce-scatters the gradient: each rank receives the sum for its own tensor.
    """

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup) -> Tensor:  # noqa: D102
        ctx.group = group
        gathered = mine.new_empty(dist.get_world_size(group), *mine.shape)
        all_gather(gathered.flatten(0, 1), mine.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        (gathered,) = gradients
        mine = gathered.new_empty(gathered.shape[1:])
        reduce_scatter(mine, gathered.contiguous().flatten(0, 1), group=ctx.group)
        return mine, None
