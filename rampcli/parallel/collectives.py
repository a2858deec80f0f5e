"""Collectives of FSDP2 that run during the passes on a CPU.

FSDP2 leaves this to the streams of a GPU. On a CPU it would wait for each collective at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from rampcli.parallel.context import all_gather, reduce_scatter
from rampcli.parallel.mesh import PIPELINE, REPLICATE

CollectiveCall = Callable[..., dist.Work | None]
"""Fills a tensor from another one: `function(output, input, group=group, **options)`."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, with the methods that FSDP expects.

    Attributes:
        run: the collective.
        prepare: called before buffers for it are allocated.
    """

    run: CollectiveCall
    prepare: Callable[[], None] = lambda: None

    def allocate(self, size: Sequence[int], **kind: Any) -> Tensor:
        """Returns a buffer, as FSDP allocates it by default."""
        self.prepare()
        return torch.empty(*size, **kind)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, **options: Any
    ) -> dist.Work | None:
        """Fills the output."""
        return self.run(output_tensor, input_tensor, group=group, **options)


def collectives_of(
    model: nn.Module, weights: DeviceMesh
) -> Iterator[tuple[FSDPModule, Collective, Collective]]:
    """Yields each FSDP module with its all-gather of weights and reduce-scatter of gradients.

    Args:
        weights: `Meshes.weights`.
    """
    # A pipeline reduces gradients outside of backward passes. Replicas all-reduce the result.
    reductions = Reductions(overlap=weights[PIPELINE].size() == weights[REPLICATE].size() == 1)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            if weights.device_type == "cpu":
                yield module, Collective(_start_all_gather), reductions.of(module)
            else:
                yield module, Collective(all_gather), Collective(reduce_scatter)


def set_collectives(module: FSDPModule, gather: Collective, reduce: Collective) -> None:
    """Lets FSDP gather and reduce with these collectives."""
    module.set_custom_all_gather(gather)  # type: ignore[arg-type]
    module.set_custom_reduce_scatter(reduce)  # type: ignore[arg-type]


def _start_all_gather(
    gathered: Tensor, shard: Tensor, group: dist.ProcessGroup, **_: Any
) -> dist.Work | None:
    """Starts to gather weights. FSDP waits when it needs them."""
    work: dist.Work | None = all_gather(gathered, shard, group=group, async_op=True)
    return work


@dataclass(slots=True)
class Reductions:
    """Reduce-scatters gradients, the mean over ranks, one group of weights at a time.

    Gloo's own `reduce_scatter` sends the whole gradients to every rank. Here each rank sends the
    others their shards only, and sums in the order of ranks.

    Attributes:
        overlap: a reduction goes on until the next one starts or the backward pass ends. Otherwise
            it is complete at once.
    """

    overlap: bool
    _unfinished: Callable[[], None] | None = field(init=False, default=None)

    def start(
        self, shard: Tensor, gradients: Tensor, group: dist.ProcessGroup, *, wait: bool
    ) -> None:
        """Starts a reduction of `gradients` into `shard`. The one before it is complete."""
        received = torch.empty_like(gradients)
        work = dist.all_to_all_single(received, gradients, group=group, async_op=True)

        def finish() -> None:
            work.wait()
            torch.mean(received.view(group.size(), -1), dim=0, out=shard)

        self._unfinished = finish
        if self.overlap and not wait:
            Variable._execution_engine.queue_callback(self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        finish, self._unfinished = self._unfinished, None
        if finish is not None:
            finish()

    def of(self, module: nn.Module) -> Collective:
        """Returns the reduce-scatter of an FSDP module's group of weights."""

        def reduce(shard: Tensor, gradients: Tensor, group: dist.ProcessGroup, **_: Any) -> None:
            # FSDP adds to gradients that are there already as soon as this returns.
            adds = any(weight.grad is not None for weight in weights_of_group(module))
            self.start(shard, gradients, group, wait=adds)

        # This one's buffers take the memory of the last one's.
        return Collective(reduce, prepare=self._finish)


def weights_of_group(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the weights that FSDP gathers together with a module."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from weights_of_group(child)
