"""The hash of every initial weight, on several meshes over all ranks one after another; rank 0 prints them."""

import hashlib
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rampcli.config.choices import Activation, Normalization, PositionEmbedding
from rampcli.config.schema import Config, ModelConfig, ParallelConfig
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts

SHAPE = {
    "num_layers": 4,
    "hidden_size": 24,
    "ffn_hidden_size": 40,
    "num_attention_heads": 4,
    "vocab_size": 44,
}
FAMILIES = {
    "llama": ModelConfig(**SHAPE, num_query_groups=2, qk_norm=True, head_size=10),
    "gpt": ModelConfig(
        **SHAPE,
        normalization=Normalization.layernorm,
        activation=Activation.gelu,
        position_embedding=PositionEmbedding.learned,
        bias=True,
        tie_embeddings=True,
    ),
}
MESHES = {
    1: [(1, 1, 1)],
    8: [(1, 1, 1), (1, 2, 2), (2, 2, 1)],
}  # pipeline, tensor, context; the rest is data parallel

dist.init_process_group("gloo")
device = torch.device("cpu")
printed = {}
for family, model in FAMILIES.items():
    for pipeline, tensor, context in MESHES[dist.get_world_size()]:
        parallel = ParallelConfig(
            pipeline_parallel_size=pipeline,
            tensor_parallel_size=tensor,
            context_parallel_size=context,
        )
        config = Config(model=model, parallel=parallel)
        config.data.sequence_length = 16
        hashes = {}
        for part in build_parts(config, build_meshes(device, parallel), device):
            for name, parameter in part.named_parameters():
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                hashes[name] = hashlib.sha256(whole.detach().numpy().tobytes()).hexdigest()
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, hashes)
        merged = {}
        for one in everyones:
            assert all(merged.setdefault(name, value) == value for name, value in one.items())
        printed[f"{family}: {pipeline} x {tensor} x {context}"] = merged
if dist.get_rank() == 0:
    print(json.dumps(printed), flush=True)
dist.barrier()
os._exit(0)
