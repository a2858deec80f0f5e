"""The gradient of eight samples with 16, 14, .. 2 valid tokens, which the ranks share."""

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.estimate.layer_memory import gradient_bytes
from rampcli.parallel.mesh import build_meshes
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.build import build_parts
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient
from ranks import joined

CPU = torch.device("cpu")


class Reductions(TorchDispatchMode):
    """Notes the bytes in fp32 that collectives reduce on this rank.

    Attributes:
        scattered: bytes of the gradients of all shards, for each reduce-scatter, which is an
            all-to-all on CPUs.
        all_reduced: for each all-reduce.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scattered: list[int] = []
        self.all_reduced: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:  # its operations on local tensors come here next
            return NotImplemented
        if func is torch.ops.c10d.alltoall_base_.default:
            self.scattered.append(args[1].nbytes)
        elif func is torch.ops.c10d.allreduce_.default and args[0][0].dtype == torch.float32:
            self.all_reduced.append(args[0][0].nbytes)
        return func(*args, **(kwargs or {}))


def gradient(micro_batch_size: int, reduce: str, shard_size: int | None = None) -> dict:
    """Returns the loss, the norm of the gradient, and the squared norm for each parameter.

    Also returns how many times this rank all-reduced gradients of the model over replicas, the
    bytes of gradients that it sent, and those that a plan counts.
    """
    config = Config(
        model=ModelConfig(
            num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64
        )
    )
    config.trainer.accumulate_reduce = reduce
    config.parallel.data_parallel_shard_size = shard_size
    tokens, labels = (
        torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    for sample in range(8):
        labels[sample, 16 - 2 * sample :] = IGNORED
    with joined() as (rank, ranks):
        meshes = build_meshes(CPU, config.parallel)
        passes = Passes(config, build_parts(config, meshes, CPU), meshes, CPU)
        mine = [plane.chunk(ranks)[rank].split(micro_batch_size) for plane in (tokens, labels)]
        with Reductions() as reductions:
            result = accumulate_gradient(
                passes,
                [MicroBatch(*parts) for parts in zip(*mine, strict=True)],
                global_tokens=int((labels != IGNORED).sum()),
                gradient_clip_val=None,
            ).wait()
        shards = shard_size or ranks
        replicas = ranks // shards
        # Rings of n ranks send (n - 1) / n of what they reduce and scatter, or twice that.
        sent = sum(reductions.scattered) * (shards - 1) // shards
        sent += 2 * sum(reductions.all_reduced) * (replicas - 1) // replicas
        counted = gradient_bytes(
            config,
            data_parallel_size=ranks,
            reductions=len(mine[0]) if reduce == "each" else 1,
        )
        squares = {
            name: whole(parameter.grad).double().square().sum().item()
            for name, parameter in passes.parts[0].named_parameters()
        }
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "gradients": squares,
        "all_reduces": len(reductions.all_reduced),
        "sent_bytes": sent,
        "counted_bytes": counted,
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the shards of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
