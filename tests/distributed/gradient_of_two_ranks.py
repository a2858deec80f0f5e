"""The gradient of this rank's share of eight samples with 16, 14, .. 2 valid tokens; rank 0 prints what came of it."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rampcli.config.choices import AccumulateReduce
from rampcli.config.schema import Config, ModelConfig
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts
from rampcli.train.passes import Passes
from rampcli.train.step import accumulate_gradient

micro_batch_size = int(sys.argv[1])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
config = Config(
    model=ModelConfig(
        num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64
    )
)
config.trainer.accumulate_reduce = AccumulateReduce(sys.argv[2])
device = torch.device("cpu")
meshes = build_meshes(device, config.parallel)
passes = Passes(config, build_parts(config, meshes, device), meshes, device)
tokens, labels = (
    torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
)
for sample in range(8):
    labels[sample, 16 - 2 * sample :] = IGNORED
mine = [
    part.split(micro_batch_size) for part in (tokens.chunk(ranks)[rank], labels.chunk(ranks)[rank])
]
micro_batches = [MicroBatch(*parts) for parts in zip(*mine, strict=True)]
result = accumulate_gradient(
    passes, micro_batches, global_tokens=int((labels != IGNORED).sum()), gradient_clip_val=None
)
gradients = {
    name: (value.grad.full_tensor() if isinstance(value.grad, DTensor) else value.grad)
    .double()
    .square()
    .sum()
    .item()
    for name, value in passes.parts[0].named_parameters()
}
if rank == 0:
    print(
        json.dumps({"loss": result.loss, "grad_norm": result.grad_norm, "gradients": gradients}),
        flush=True,
    )
dist.barrier()
os._exit(0)
