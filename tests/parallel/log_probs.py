"""Log-probabilities of a model whose ranks share the weights, and the gradient of their sum."""

from functools import partial

import torch
from torch.distributed.tensor import DTensor

from rampcli.data.corpus import IGNORED
from rampcli.models.loss import token_log_probs
from rampcli.parallel.mesh import TENSOR, build_meshes
from rampcli.parallel.tensor import loss_over, token_log_probs_of_shards
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.build import build_parts
from ranks import joined

CPU = torch.device("cpu")
TEMPERATURE = 0.7


def log_probs_and_gradients(tensor_parallel_size: int) -> dict:
    """Returns the log-probabilities and entropies of four pairs, and the whole gradients.

    The other ranks are data-parallel. The gradient is that of a sum in which each token has another
    factor.
    """
    config = Config(
        model=ModelConfig(
            num_layers=2, hidden_size=32, ffn_hidden_size=48, num_query_groups=2, vocab_size=64
        )
    )
    config.parallel.tensor_parallel_size = tensor_parallel_size
    tokens, labels = (
        torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    for pair in range(4):
        labels[pair, :3] = labels[pair, 16 - 2 * pair :] = IGNORED
    factors = torch.linspace(-1, 2, tokens.numel()).view_as(tokens)
    with joined() as (rank, ranks):
        meshes = build_meshes(CPU, config.parallel)
        (model,) = build_parts(config, meshes, CPU)
        compute = token_log_probs if tensor_parallel_size == 1 else token_log_probs_of_shards
        model.loss = partial(compute, temperature=TEMPERATURE)
        shares = ranks // tensor_parallel_size
        share = rank // tensor_parallel_size
        tokens, labels, factors = (
            plane.chunk(shares)[share] for plane in (tokens, labels, factors)
        )
        with loss_over(meshes.data[TENSOR]):
            found = model(tokens, labels=labels)
            # FSDP divides by the data-parallel ranks.
            (shares * (found[0] * factors).sum()).backward()
        gradients = {
            name: whole(parameter.grad).numpy() for name, parameter in model.named_parameters()
        }
    return {"found": found.detach().numpy(), "gradients": gradients}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the shards of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
