"""The gradient of eight samples with 16, 14, .. 2 valid tokens, which the ranks share."""

from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rampcli.config.schema import Config, ModelConfig
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient
from ranks import joined

CPU = torch.device("cpu")


def gradient(micro_batch_size: int, reduce: str, shard_size: int | None = None) -> dict:
    """Returns the loss, the norm of the gradient, and the squared norm for each parameter.

    Also returns how many times this rank all-reduced gradients of the model over replicas.
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
        with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as all_reduce:
            result = accumulate_gradient(
                passes,
                [MicroBatch(*parts) for parts in zip(*mine, strict=True)],
                global_tokens=int((labels != IGNORED).sum()),
                gradient_clip_val=None,
            ).wait()
        reduced = [call.args[0].dtype for call in all_reduce.call_args_list]
        squares = {
            name: whole(parameter.grad).double().square().sum().item()
            for name, parameter in passes.parts[0].named_parameters()
        }
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "gradients": squares,
        "all_reduces": reduced.count(torch.float32),
    }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the shards of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
