"""Data parallelism: replicated, sharded (FSDP2), or sharded within replicated groups (HSDP).

FSDP2 could replicate as well. But it copies the weights before they are used, and a CPU would wait
for each of its all-reduces. So replicas average their gradients here.
"""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rampcli.models.decoder import Decoder
from rampcli.parallel.collectives import collectives_of, set_collectives, weights_of_group
from rampcli.parallel.mesh import PIPELINE, REPLICATE, SHARD, set_replicas
from rampcli.settings.trainer import Precision

GRADIENT_AVERAGE = "_gradient_average"
"""Attribute of a model of which replicas hold copies."""
POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}


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
    setattr(model, GRADIENT_AVERAGE, GradientAverage([list(group) for group in groups], mesh))
    for weight in model.parameters():
        set_replicas(weight, mesh)


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


def shard_over_data_ranks(model: Decoder, weights: DeviceMesh, precision: Precision) -> None:
    """Shards a decoder, in place. It is only replicated if shard groups have one rank.

    The weights of each block are gathered together, and their gradients are reduced together. So
    are those of the embeddings, and those of the last norm and the output projection. Tied weights
    belong to both, so these are then one group.

    Args:
        model: this rank's pipeline stage, after tensor parallelism was applied.
        weights: `Meshes.weights`.
        precision: type of the gathered weights; gradients are reduced in fp32.
    """
    shard = partial(
        fully_shard,
        mesh=weights[SHARD] if weights[REPLICATE].size() == 1 else weights[REPLICATE, SHARD],
        mp_policy=POLICIES[precision],
    )
    # A pipeline stage uses its weights for every micro batch, so it keeps them gathered.
    reshard = weights[PIPELINE].size() == 1
    embeddings, layers, head = _groups(model)
    for block in layers:
        shard(block, reshard_after_forward=reshard)
    if embeddings:
        shard(embeddings, reshard_after_forward=reshard)
        # The gradient of a table does not depend on its values.
        embeddings[0].set_unshard_in_backward(False)
    if head:
        # The backward pass uses them first.
        shard(head, reshard_after_forward=False)
    shard(model, reshard_after_forward=False)
    if weights.device_type == "cpu":
        for module, gather, reduce in collectives_of(model, weights):
            set_collectives(module, gather, reduce)
        for group, following in pairwise([*embeddings[:1], *layers, *head[:1]]):
            group.set_modules_to_forward_prefetch([following])


def replicate(model: Decoder, replicas: DeviceMesh) -> None:
    """Lets backward passes average the gradients of a decoder that every rank holds in fp32.

    Args:
        model: with memory. It is not sharded.
        replicas: the ranks, along one axis. Nothing happens if there is only one.
    """
    if replicas.size() == 1:
        return
    embeddings, layers, head = _groups(model)
    groups = [head, *([block] for block in reversed(layers)), embeddings]
    # The gradient of a weight that several groups share is complete when the last one's are.
    last = {
        weight: group
        for group, modules in enumerate(groups)
        for module in modules
        for weight in module.parameters()
    }
    weights: list[list[nn.Parameter]] = [[] for _ in [*groups, "others"]]
    for weight in model.parameters():
        if weight.requires_grad:
            weights[last.get(weight, -1)].append(weight)
    average_over_replicas(model, weights, replicas)


def _groups(model: Decoder) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns embeddings, layers and head. Tied embeddings belong to no group of their own."""
    layers = list(model.layers.values())
    if model.model.tie_embeddings:
        return [], layers, []
    embeddings, head = (model.embedding, model.position_embedding), (model.norm, model.output)
    return (
        [module for module in embeddings if module is not None],
        layers,
        [module for module in head if module is not None],
    )


def weights_of_passes(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the weights that receive the gradients of backward passes, each of them once.

    With FSDP, these are the gathered weights, which stay the same objects, and not the parameters.
    They are gathered one group after another. Every rank calls this.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    found = set[nn.Parameter]()
    for module in sharded:
        module.unshard()
        found.update(weights_of_group(module))
        module.reshard()
    yield from found if sharded else model.parameters()


def free_gathered_weights(model: nn.Module) -> None:
    """Keeps only this rank's shards. Call it after a forward pass without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def set_gradient_reduction(
    model: nn.Module, *, last_micro_batch: bool, each: bool, over_replicas: bool = True
) -> None:
    """Sets whether the next backward pass reduces gradients over the data-parallel ranks.

    Args:
        model: the model; nothing happens if it is on one rank.
        last_micro_batch: True for the last micro batch of a step, which always reduces.
        each: reduce after every micro batch. Replicas still all-reduce after the last one only:
            until then, each of them sums its own shards.
        over_replicas: all-reduce gradients over replicas too. Without it, replicas have different
            gradients, which only measurements of time may use.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_micro_batch or each)
        model.set_requires_all_reduce(last_micro_batch and over_replicas)
        model.set_is_last_backward(last_micro_batch)
    elif (gradients := getattr(model, GRADIENT_AVERAGE, None)) is not None:
        gradients.prepare(average=last_micro_batch and over_replicas)
