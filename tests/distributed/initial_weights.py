"""The initial weights of two families of models on several meshes."""

import hashlib

import torch.distributed as dist

from models.families import GPT
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig
from ranks import build_passes, joined, whole

SHAPE = {
    "num_layers": 2,
    "hidden_size": 24,
    "ffn_hidden_size": 40,
    "num_attention_heads": 4,
    "vocab_size": 44,
}
FAMILIES = {
    "llama": ModelConfig(**SHAPE, num_query_groups=2, qk_norm=True, head_size=10),
    "gpt": ModelConfig(**SHAPE, **GPT),
}
MESHES = {1: [(1, 1, 1)], 8: [(1, 1, 1), (1, 2, 2), (2, 2, 1)]}
"""By number of ranks: ranks per pipeline, tensor and context group. The rest is data parallel."""


def hash_weights() -> dict[tuple[str, tuple[int, int, int]], dict[str, str]]:
    """Returns the hash of every weight, by family and mesh."""
    with joined() as (_, ranks):
        return {
            (family, mesh): _hash_on(mesh, model)
            for family, model in FAMILIES.items()
            for mesh in MESHES[ranks]
        }


def _hash_on(mesh: tuple[int, int, int], model: ModelConfig) -> dict[str, str]:
    pipeline, tensor, context = mesh
    parallel = ParallelConfig(
        pipeline_parallel_size=pipeline,
        tensor_parallel_size=tensor,
        context_parallel_size=context,
    )
    config = Config(model=model, parallel=parallel)
    config.data.sequence_length = 16
    hashes = {
        name: hashlib.sha256(whole(parameter).detach().numpy().tobytes()).hexdigest()
        for part in build_passes(config).parts
        for name, parameter in part.named_parameters()
    }
    everyones: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, hashes)
    merged: dict[str, str] = {}
    for one in everyones:
        assert all(merged.setdefault(name, value) == value for name, value in one.items())
    return merged
