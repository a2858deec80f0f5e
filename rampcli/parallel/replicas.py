"""Data parallelism of ranks that each hold all weights, in fp32: they average their gradients.

FSDP2 could do this too. But it copies the weights before they are used, and a CPU would wait for
each of its all-reduces.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

MESH, AVERAGE = "_replica_mesh", "_gradient_average"
"""Attributes of a weight of which replicas hold copies, and of its model."""


def average_over_replicas(
    model: nn.Module, groups: Iterable[Iterable[nn.Parameter]], mesh: DeviceMesh
) -> None:
    """Lets backward passes average the gradients of a model over replicas.

    Args:
        model: a plain model, with memory.
        groups: weights that are trained, in the order in which a backward pass computes their
            gradients. Those of a group are averaged together. Ranks may leave weights out of a
            pass, all of them the same.
        mesh: the replicas, along one axis.
    """
    setattr(model, AVERAGE, GradientAverage([list(group) for group in groups], mesh))
    for weight in model.parameters():
        setattr(weight, MESH, mesh)


def prepare_average(model: nn.Module, *, average: bool) -> None:
    """Sets whether the next backward pass averages gradients, if the model is replicated."""
    if (gradients := getattr(model, AVERAGE, None)) is not None:
        gradients.prepare(average=average)


def layout_of(weight: Tensor) -> tuple[DeviceMesh | None, tuple[Placement, ...]]:
    """Returns the mesh of the ranks that hold a weight, and its placement along each axis.

    A weight that only this rank holds has no mesh.
    """
    if isinstance(weight, DTensor):
        return weight.device_mesh, tuple(weight.placements)
    mesh = getattr(weight, MESH, None)
    return mesh, () if mesh is None else (Replicate(),)


def is_first_copy(weight: Tensor) -> bool:
    """Returns whether this rank is the first of those that hold the same shard of a weight."""
    mesh, placements = layout_of(weight)
    places = zip(placements, mesh.get_coordinate() or () if mesh else (), strict=True)
    return all(place == 0 for placement, place in places if placement.is_replicate())


class GradientAverage:
    """Averages gradients over replicas while the backward pass goes on.

    A group starts when all its gradients are computed and the groups before it have started, so
    that ranks agree on the order. The arguments are those of `average_over_replicas`.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], mesh: DeviceMesh) -> None:
        self.groups = groups
        self.group, self.ranks = mesh.get_group(), mesh.size()
        self._expected: list[set[nn.Parameter]] = []
        self._works: list[Any] = []
        self._is_in_pass = False
        # Hooks that held this object, which holds the weights, would never be freed.
        this = weakref.ref(self)

        def computed(weight: Tensor) -> None:
            if (average := this()) is not None:
                average._computed(weight)

        for weight in (weight for group in groups for weight in group):
            weight.register_post_accumulate_grad_hook(computed)  # type: ignore[no-untyped-call]

    def prepare(self, *, average: bool) -> None:
        """Sets whether the next backward pass averages the gradients."""
        self._expected = [set(group) for group in self.groups] if average else []
        self._works, self._is_in_pass = [], False

    def _computed(self, weight: Tensor) -> None:
        if not self._expected:
            return
        if not self._is_in_pass:
            self._is_in_pass = True
            Variable._execution_engine.queue_callback(self._finish)
        for expected in self._expected:
            expected.discard(weight)
        while self._expected and not self._expected[0]:
            self._start_next()

    def _start_next(self) -> None:
        """Starts to average the gradients of the next group."""
        weights = self.groups[-len(self._expected)]
        del self._expected[0]
        used = [(weight, weight.grad) for weight in weights if weight.grad is not None]
        if not used:
            return
        sizes = [gradient.numel() for _, gradient in used]
        summed = torch.empty(sum(sizes), device=used[0][1].device)
        for (weight, gradient), part in zip(used, summed.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            place = part.as_strided(gradient.shape, gradient.stride(), part.storage_offset())
            weight.grad = torch.div(gradient, self.ranks, out=place)
        self._works.append(dist.all_reduce(summed, group=self.group, async_op=True))

    def _finish(self) -> None:
        """Waits for all averages, at the end of a backward pass."""
        while self._expected:  # a weight had no gradient
            self._start_next()
        for work in self._works:
            work.wait()
        self._works, self._is_in_pass = [], False
