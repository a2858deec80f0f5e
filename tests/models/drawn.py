"""Decoders with the initial weights of a seed."""

from functools import partial

from rampcli.models.decoder import Decoder
from rampcli.models.initialize import initial_rows
from rampcli.settings.model import ModelConfig
from rampcli.train.build import fill_weights


def draw_decoder(
    model: ModelConfig, sequence_length: int, *, layers: range | None = None, seed: int = 1
) -> Decoder:
    decoder = Decoder(model, sequence_length=sequence_length, layers=layers)
    fill_weights(decoder, partial(initial_rows, seed=seed))
    return decoder
