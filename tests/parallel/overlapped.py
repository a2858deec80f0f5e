"""A pass of two ranks over a model with two layers, whose weights they share or replicate."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rampcli.data.loader import MicroBatch
from rampcli.models.decoder import build_decoder
from rampcli.models.initialize import initial_rows
from rampcli.parallel import collectives
from rampcli.parallel.fsdp import replicate
from rampcli.parallel.mesh import REPLICATE, build_meshes
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig
from rampcli.train.build import build_parts, fill_weights
from rampcli.train.passes import Passes
from rampcli.train.step import local_gradients
from ranks import build_passes, joined

CPU = torch.device("cpu")
SMALL = ModelConfig(
    num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64
)
c10d, aten = torch.ops.c10d, torch.ops.aten
NAMES = {
    c10d._allgather_base_.default: "gather",
    c10d.alltoall_base_.default: "send gradients",
    c10d.allreduce_.default: "average gradients",
    aten.mean.out: "sum gradients",
    aten.mm.default: "compute",
}


class Operations(TorchDispatchMode):
    """Notes operations that have one of `NAMES`, and waits for collectives, but no repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def note(self, name: str) -> None:
        if self.names[-1:] != [name]:
            self.names.append(name)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in NAMES:
            self.note(NAMES[func])
        return func(*args, **(kwargs or {}))

    def noting_waits(self, collective: Callable[..., dist.Work], name: str) -> Callable[..., Any]:
        """Returns a collective that must be asynchronous, and whose `wait` is noted."""

        def start(*args: Any, **kwargs: Any) -> dist.Work:
            assert kwargs["async_op"]
            return NotedWork(collective(*args, **kwargs), partial(self.note, name))

        return start


class NotedWork(dist.Work):
    """A collective in progress that notes when it is waited for."""

    def __init__(self, work: dist.Work, note: Callable[[], None]) -> None:
        super().__init__()
        self.work, self.note = work, note

    def wait(self, *args: Any) -> bool:
        self.note()
        return self.work.wait(*args)


@contextmanager
def small_passes(shards: int) -> Iterator[tuple[Passes, list[MicroBatch]]]:
    config = Config(model=SMALL, parallel=ParallelConfig(data_parallel_shard_size=shards))
    with joined() as (rank, _):
        yield build_passes(config), batch_of(rank)


def batch_of(rank: int) -> list[MicroBatch]:
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(rank))
    return [MicroBatch(tokens, tokens)]


def operations(shards: int) -> list[str]:
    """Returns the names of the operations of a forward and backward pass, in their order."""
    with small_passes(shards) as (passes, batch):
        passes.forward_backward(batch, scale=1.0)  # the first pass sets FSDP up
        passes.parts[0].zero_grad()
        noted = Operations()
        gather = noted.noting_waits(collectives.all_gather, "have weights")
        send = noted.noting_waits(dist.all_to_all_single, "have gradients")
        average = noted.noting_waits(dist.all_reduce, "have averages")
        with (
            noted,
            patch.object(collectives, "all_gather", gather),
            patch.object(dist, "all_to_all_single", send),
            patch.object(dist, "all_reduce", average),
        ):
            passes.forward_backward(batch, scale=1.0)
    return noted.names


def gradient_of_two_passes(shards: int) -> bool:
    """Returns whether a second pass doubles the gradient."""
    with small_passes(shards) as (passes, batch):
        gradients = []
        for _ in range(2):
            passes.forward_backward(batch, scale=1.0)
            shares = local_gradients(passes.parts, copies=True)
            gradients.append([gradient.clone() for gradient in shares])
        return all(torch.allclose(2 * once, twice) for once, twice in zip(*gradients, strict=True))


def gradient_without_a_layer() -> dict[str, float | None]:
    """Returns the sum of each weight's gradient, or None, if layer 0 has no effect."""
    with small_passes(1) as (passes, batch):
        (model,) = passes.parts
        model.layers["0"].forward = lambda hidden, *_: hidden
        passes.forward_backward(batch, scale=1.0)
        return {
            name: None if weight.grad is None else weight.grad.abs().sum().item()
            for name, weight in model.named_parameters()
        }


def average_of_unusual_weights() -> list[bool | None]:
    """Returns whether the gradient of each weight is the mean over ranks, or None without one.

    Two layers share a weight, one is frozen, and one is not contiguous.
    """
    with joined() as (rank, ranks):
        meshes = build_meshes(CPU, ParallelConfig(data_parallel_shard_size=1))
        config = Config(model=SMALL)
        model = build_decoder(SMALL, sequence_length=16)
        model.to_empty(device=CPU)
        first, second = (layer.ffn for layer in model.layers.values())
        first.up.weight = second.up.weight
        first.output.weight.requires_grad_(False)
        second.output.weight = nn.Parameter(second.output.weight.mT.contiguous().mT)
        fill_weights(model, partial(initial_rows, seed=1))
        replicate(model, meshes.weights[REPLICATE])
        passes = Passes(config, [model], meshes, CPU)
        gradients = []
        for averages in (False, True):
            model.zero_grad()
            passes.reduces_over_replicas = averages
            passes.forward_backward(batch_of(rank), scale=1.0)
            gradients.append([weight.grad for weight in model.parameters()])
        found = []
        for weight, own, mean in zip(model.parameters(), *gradients, strict=True):
            if own is None:
                found.append(None)
                continue
            dist.all_reduce(own)
            found.append(torch.allclose(own / ranks, mean) and mean.stride() == weight.stride())
        return found


def lives_on() -> bool:
    """Returns whether a replicated weight is still there when nothing refers to its model."""
    with joined():
        config = Config(model=SMALL, parallel=ParallelConfig(data_parallel_shard_size=1))
        (model,) = build_parts(config, build_meshes(CPU, config.parallel), CPU)
        weight = weakref.ref(next(model.parameters()))
        del model
        gc.collect()
        return weight() is not None
