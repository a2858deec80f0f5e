"""Switches the exchange between data-parallel ranks off, so that its time can be measured.

Without an exchange, a rank uses its own numbers in place of the other ranks' numbers, or zeros in
Muon's step. It does all other work of a step, with the same memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from rampcli.parallel.mesh import CONTEXT, PIPELINE, REPLICATE, SHARD, TENSOR, Meshes
from rampcli.parallel.overlap import Collective, collectives_of, set_collectives
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.train.muon import Muon
from rampcli.train.passes import Passes


class Exchange:
    """The exchange between the data-parallel ranks, which can be switched off.

    Attributes:
        gathers_weights: whether weights are gathered from the other ranks.
        reduces_gradients: whether gradients are reduced over the ranks.
    """

    def __init__(self, passes: Passes, optimizers: Iterable[Optimizer]) -> None:
        """Takes over the exchange of a model and its optimisers."""
        self.passes = passes
        self._muons = [one for one in optimizers if isinstance(one, Muon)]
        self.gathers_weights = self.reduces_gradients = True
        # FSDP sets no gradients until they are reduced over replicas.
        self._sets_none = passes.meshes.weights[REPLICATE].size() > 1 and any(
            isinstance(part, FSDPModule) for part in passes.parts
        )
        self._gradients: list[Tensor] | None = None
        for part in passes.parts:
            for module, gather, reduce in collectives_of(part, passes.meshes.weights):
                set_collectives(
                    module,
                    switchable(gather, repeat_shard, lambda: self.gathers_weights),
                    switchable(reduce, take_part, lambda: self.reduces_gradients),
                )

    def limit_to(self, *, gradients: bool, weights: bool, sums: bool) -> None:
        """Switches the exchanges off that are False, and the others on.

        Args:
            gradients: reduce gradients over the data-parallel ranks, and bring those of Muon to
                the ranks that orthogonalise them.
            weights: gather sharded weights.
            sums: sum losses, gradient norms and token counts over all ranks.
        """
        self.reduces_gradients = self.passes.reduces_over_replicas = gradients
        self.gathers_weights = weights
        self.passes.sums_over_ranks = sums
        for muon in self._muons:
            muon.exchanges = gradients

    def fill_gradients(self) -> None:
        """Sets zero gradients where a step without reductions sets none. Call it before a step."""
        if self.reduces_gradients or not self._sets_none:
            return
        parameters = [weight for part in self.passes.parts for weight in part.parameters()]
        if self._gradients is None:
            self._gradients = [torch.zeros_like(weight) for weight in parameters]
        for weight, gradient in zip(parameters, self._gradients, strict=True):
            weight.grad = gradient


def switchable(
    collective: Collective,
    alone: Callable[[Tensor, Tensor, dist.ProcessGroup], None],
    is_on: Callable[[], bool],
) -> Collective:
    """Returns a collective of FSDP that can be switched off.

    Args:
        collective: the collective that FSDP uses.
        alone: fills the output from the input of this rank instead.
        is_on: whether the collective is used.
    """

    def run(
        output: Tensor, mine: Tensor, *, group: dist.ProcessGroup, **options: Any
    ) -> dist.Work | None:
        if is_on():
            return collective.run(output, mine, group=group, **options)
        alone(output, mine, group)
        return None

    return replace(collective, run=run)


def repeat_shard(gathered: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
    """Copies this rank's shard to the places of the other ranks' shards."""
    for rank, place in enumerate(gathered.view(group.size(), -1)):
        if rank != group.rank():  # the shard is this rank's part of the gathered weights
            place.copy_(shard)


def take_part(part: Tensor, gradients: Tensor, group: dist.ProcessGroup) -> None:
    """Takes this rank's part of its own gradients."""
    part.copy_(gradients.view(group.size(), -1)[group.rank()])


def why_gradients_need_exchange(meshes: Meshes) -> str | None:
    """Returns why the exchange of gradients cannot be switched off, or None if it can."""
    replicas, shards = meshes.weights[REPLICATE].size(), meshes.weights[SHARD].size()
    if replicas * shards == 1:
        return "there is one data-parallel rank"
    if replicas > 1 and meshes.size(PIPELINE) > 1:
        return "a pipeline reduces gradients over replicas by itself"
    return None


def why_step_needs_all_ranks(meshes: Meshes, optimizer: str) -> str | None:
    """Returns why a rank cannot take a step without the others, or None if it can.

    Args:
        optimizer: `optim.optimizer`.
    """
    for axis in (PIPELINE, TENSOR, CONTEXT):
        if meshes.size(axis) > 1:
            return f"{axis} parallelism needs the other ranks"
    if optimizer not in OPTIMIZERS:
        return f"optim.optimizer={optimizer}, a part of your own, may need the other ranks"
    return why_gradients_need_exchange(meshes)
