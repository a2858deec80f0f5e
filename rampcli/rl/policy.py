"""The policy that generates: the trained model, or a whole copy of it."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rampcli.config.schema import Config
from rampcli.models.decoder import Decoder
from rampcli.parallel.fsdp import free_gathered_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Type of the weights in a forward pass, by `trainer.precision`."""


class Policy:
    """A whole model with the present weights, on each rank that trains.

    A model that is not split generates itself. Otherwise each rank keeps a whole copy, in the type
    of the forward pass.

    Args:
        trained: this rank's part of the model.
        config: the configuration.
        device: the device of this rank.

    Attributes:
        model: the model that generates responses.
        dtype: type of its weights.
    """

    def __init__(self, trained: Decoder, config: Config, device: torch.device) -> None:
        self.trained = trained
        self.dtype = DTYPES[config.trainer.precision]
        self.model = trained
        if any(isinstance(parameter, DTensor) for parameter in trained.parameters()):
            self.model = empty_copy(config, device)

    def refresh(self) -> None:
        """Copies the present weights. Every rank calls this after they have changed."""
        if self.model is self.trained:
            return
        weights = whole_weights(self.trained, self.dtype)
        for copy, weight in zip(self.model.parameters(), weights, strict=True):
            copy.copy_(weight)


@torch.no_grad()
def whole_weights(model: Decoder, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields the whole weights of a model that may be sharded. Every rank iterates over all."""
    free_gathered_weights(model)
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
        yield whole.to(dtype)


def empty_copy(config: Config, device: torch.device) -> Decoder:
    """Returns a whole model without values for its weights, in the type of the forward pass."""
    with torch.device("meta"):
        model = Decoder(config.model, sequence_length=config.data.sequence_length)
    model.requires_grad_(False).to(DTYPES[config.trainer.precision])
    model.to_empty(device=device)
    model.tie()
    model.fill_buffers()
    return model
