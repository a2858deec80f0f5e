"""The context axis: every sequence split over ranks, which gather the keys and values of all of it.

Each rank has one piece from the front and one from the back of the sequence, so that all have as much to do (arXiv 2407.21783, section
3.3.2).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

# torch 2.13 renamed them.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def split_sequence(model: nn.Module, mesh: DeviceMesh) -> None:
    """Let the attention of a model work on this rank's pieces of each sequence, in place."""
    if mesh.size() == 1:
        return
    for module in list(model.modules()):
        if isinstance(core := getattr(module, "core", None), nn.Module):
            module.core = GatheredAttention(core, mesh)


def pieces_of(tensor: Tensor, mesh: DeviceMesh, *, dim: int) -> Tensor:
    """This rank's pieces of a tensor along the sequence."""
    if mesh.size() == 1:
        return tensor
    pieces, rank = tensor.chunk(2 * mesh.size(), dim=dim), mesh.get_local_rank()
    return torch.cat([pieces[rank], pieces[-1 - rank]], dim=dim)


class GatheredAttention(nn.Module):
    """Causal attention for this rank's pieces of the queries, over the keys and values of all ranks."""

    def __init__(self, core: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.core = core
        self.mesh = mesh
        ranks = mesh.size()
        order = [piece for rank in range(ranks) for piece in (rank, 2 * ranks - 1 - rank)]
        self.places = [order.index(piece) for piece in range(2 * ranks)]
        """Where each piece of the sequence is among those that are gathered."""

    def forward(  # noqa: D102
        self, query: Tensor, key: Tensor, value: Tensor, in_documents: Tensor | None = None
    ) -> Tensor:
        gathered = Gather.apply(torch.stack([key, value]), self.mesh.get_group())  # type: ignore[no-untyped-call]
        pieces = [piece for ranks in gathered for piece in ranks.chunk(2, dim=3)]
        keys, values = torch.cat([pieces[place] for place in self.places], dim=3)
        front, back = query.chunk(2, dim=2)
        places = (None, None) if in_documents is None else in_documents.chunk(2, dim=1)
        rank, length = self.mesh.get_local_rank(), front.shape[2]
        mixed = []
        for piece, part, place in zip(
            (rank, len(self.places) - 1 - rank), (front, back), places, strict=True
        ):
            end = (piece + 1) * length
            mixed.append(self.core(part, keys[:, :, :end], values[:, :, :end], place))
        return torch.cat(mixed, dim=2)


class Gather(torch.autograd.Function):
    """A tensor [...] to those of all ranks, [ranks, ...]; its gradient is the sum of what they make of it."""

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
