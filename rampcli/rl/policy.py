"""The policy that generates: the trained model, or a whole copy of it."""

import torch

from rampcli.checkpoint.load_weights import DTYPES, empty_model
from rampcli.config.schema import Config
from rampcli.models.decoder import Decoder
from rampcli.train.whole_model import is_split, whole_weights


class Policy:
    """A whole model with the present weights, on each rank that trains.

    A model that is not split generates itself. Otherwise each rank keeps a whole copy, in the type
    of the forward pass.

    Attributes:
        model: the model that generates responses.
        dtype: type of its weights.
    """

    def __init__(self, trained: Decoder, config: Config, device: torch.device) -> None:
        self.trained = trained
        self.dtype = DTYPES[config.trainer.precision]
        self.model = trained
        if is_split([trained]):
            self.model = empty_model(config, device, self.dtype)

    def refresh(self) -> None:
        """Copies the present weights. Every rank calls this after they have changed."""
        if self.model is self.trained:
            return
        weights = whole_weights(self.trained, self.dtype)
        for copy, weight in zip(self.model.parameters(), weights, strict=True):
            copy.copy_(weight)
