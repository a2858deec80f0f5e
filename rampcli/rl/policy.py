"""The policy that generates: the trained model, or a whole copy of it."""

import torch
from torch.distributed.tensor import DTensor

from rampcli.config.schema import Config
from rampcli.models.decoder import Decoder
from rampcli.parallel.fsdp import free_gathered_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Policy:
    """A whole model with the present weights, on each rank that trains.

    A model that is not split generates itself. Otherwise each rank keeps a whole copy, in the type
    of the forward pass.

    Args:
        trained: this rank's part of the model.
        config: the configuration.
        device: the device of this rank.

    Attributes:
        model: what generates.
    """

    def __init__(self, trained: Decoder, config: Config, device: torch.device) -> None:
        self.trained = trained
        self.model = trained
        if any(isinstance(parameter, DTensor) for parameter in trained.parameters()):
            self.model = empty_copy(config, device)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the present weights. Every rank calls this after they have changed."""
        if self.model is self.trained:
            return
        free_gathered_weights(self.trained)
        copies = dict(self.model.named_parameters())
        for name, parameter in self.trained.named_parameters():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            copies[name].copy_(whole)


def empty_copy(config: Config, device: torch.device) -> Decoder:
    """Returns a whole model without values for its weights, in the type of the forward pass."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    model.requires_grad_(False).to(DTYPES[config.trainer.precision])
    model.to_empty(device=device)
    model.tie()
    model.fill_buffers()
    return model
