"""From settings to a model on its ranks, and its optimiser."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from rampcli.config.schema import Config, OptimConfig
from rampcli.models.decoder import Decoder
from rampcli.models.initialize import initial_value
from rampcli.parallel.fsdp import shard_over_data_ranks


def build_model(config: Config, mesh: DeviceMesh, device: torch.device) -> Decoder:
    """A model with its initial weights, sharded before it is given memory, so that no rank holds it whole."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    shard_over_data_ranks(model, model.layers, mesh, config.trainer.precision)
    model.to_empty(device=device)
    fill_weights(model, seed=config.seed)
    return model


@torch.no_grad()
def fill_weights(model: Decoder, *, seed: int) -> None:
    """Give every parameter its initial value; one whole parameter at a time is held on the CPU."""
    for name, parameter in model.named_parameters():
        value = initial_value(model, name, parameter.shape, seed=seed).to(parameter.device)
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(value)
    if model.rotary is not None:
        model.rotary.fill()


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) with weight decay on matrices and embeddings only; the learning rate is set before each step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
