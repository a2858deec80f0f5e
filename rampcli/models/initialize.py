"""Initial weights: a pure function of the seed and the parameter's name, whatever the mesh."""

import hashlib

import torch
from torch import Tensor, nn

from rampcli.models.decoder import Decoder, residual_init_std


def initial_value(model: Decoder, name: str, shape: torch.Size, *, seed: int) -> Tensor:
    """The whole initial value of one parameter, fp32 on the CPU.

    Matrices and embeddings are drawn from a normal distribution; norms are ones and biases zeros.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, nn.RMSNorm | nn.LayerNorm):
        return torch.ones(shape)
    writes_residual = name.startswith("layers.") and name.endswith("output.weight")
    std = residual_init_std(model.model) if writes_residual else model.model.init_std
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    return torch.randn(shape, generator=generator) * std


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "big", signed=True)
