"""One step of gradient descent on this rank's share of eight samples with 16, 14, .. 2 valid tokens; rank 0 prints what came of it."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rampcli.config.schema import Config, ModelConfig
from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch, RankBatch
from rampcli.engine.build import build_model
from rampcli.engine.step import train_step
from rampcli.parallel.mesh import build_mesh

micro_batch_size = int(sys.argv[1])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
config = Config(model=ModelConfig(num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64))
device = torch.device("cpu")
model = build_model(config, build_mesh(device, data_parallel_size=ranks), device)
tokens, labels = (torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
for sample in range(8):
    labels[sample, 16 - 2 * sample :] = IGNORED
mine = [part.split(micro_batch_size) for part in (tokens.chunk(ranks)[rank], labels.chunk(ranks)[rank])]
batch = RankBatch([MicroBatch(*parts) for parts in zip(*mine, strict=True)], None)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
result = train_step(model, optimizer, batch, global_tokens=int((labels != IGNORED).sum()), gradient_clip_val=None)
weights = {
    name: (value.full_tensor() if isinstance(value, DTensor) else value).double().square().sum().item()
    for name, value in model.named_parameters()
}
if rank == 0:
    print(json.dumps({"loss": result.loss, "grad_norm": result.grad_norm, "weights": weights}), flush=True)
dist.barrier()
os._exit(0)
