"""Data parallelism of ranks that each hold all weights, in fp32: they average their gradients.

FSDP2 could do this too. But it copies the weights before they are used, and a CPU would wait for
each of its all-reduces.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh

from rampcli.parallel.layout import set_replicas

AVERAGE = "_gradient_average"
"""Attribute of a model of which replicas hold copies."""


def average_over_replicas(
    model: nn.Module, groups: Iterable[Iterable[nn.Parameter]], mesh: DeviceMesh
) -> None:
    """Lets backward passes average the gradients of a model over replicas.

    Args:
        model: a plain model, with memory.
        groups: weights that are trained, each in one group, in the order in which a backward pass
            computes their gradients. Those of a group are averaged together. Ranks may leave
            weights out of a pass, all of them the same.
        mesh: the replicas, along one axis.
    """
    setattr(model, AVERAGE, GradientAverage([list(group) for group in groups], mesh))
    for weight in model.parameters():
        set_replicas(weight, mesh)


def prepare_average(model: nn.Module, *, average: bool) -> None:
    """Sets whether the next backward pass averages gradients, if the model is replicated."""
    if (gradients := getattr(model, AVERAGE, None)) is not None:
        gradients.prepare(average=average)


class GradientAverage:
    """Averages gradients over replicas while the backward pass goes on.

    A group starts when all its gradients are computed and the groups before it have started, so
    that ranks agree on the order. The arguments are those of `average_over_replicas`.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], mesh: DeviceMesh) -> None:
        self.groups = groups
        self.group, self.ranks = mesh.get_group(), mesh.size()
        self._place = {weight: place for place, group in enumerate(groups) for weight in group}
        self._missing: list[int] = []
        self._started = 0
        self._works: list[Any] = []
        self._is_in_pass = False
        # Hooks that held this object, which holds the weights, would never be freed.
        this = weakref.ref(self)

        def computed(weight: nn.Parameter) -> None:
            if (average := this()) is not None:
                average._computed(weight)

        for weight in self._place:
            weight.register_post_accumulate_grad_hook(computed)  # type: ignore[no-untyped-call]

    def prepare(self, *, average: bool) -> None:
        """Sets whether the next backward pass averages the gradients."""
        self._missing = [len(group) for group in self.groups] if average else []
        self._started, self._works, self._is_in_pass = 0, [], False

    def _computed(self, weight: nn.Parameter) -> None:
        if not self._missing:
            return
        if not self._is_in_pass:
            self._is_in_pass = True
            Variable._execution_engine.queue_callback(self._finish)
        self._missing[self._place[weight]] -= 1
        while self._started < len(self.groups) and self._missing[self._started] == 0:
            self._start_next()

    def _start_next(self) -> None:
        """Starts to average the gradients of the next group."""
        weights = self.groups[self._started]
        self._started += 1
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
        while self._started < len(self.groups):  # a weight had no gradient
            self._start_next()
        for work in self._works:
            work.wait()
        self.prepare(average=False)
