"""Builds the model of `model.family`."""

from rampcli.config.extension_settings import extension_function
from rampcli.config.schema import ModelConfig
from rampcli.errors import UsageError
from rampcli.extensions import MODEL
from rampcli.models.decoder import Decoder


def build_decoder(
    model: ModelConfig, *, sequence_length: int, layers: range | None = None
) -> Decoder:
    """Returns a model with the arguments of `Decoder`.

    Raises:
        UsageError: the family is an extension that is not known here, or not a `Decoder`.
    """
    build = extension_function(MODEL, model.family, model) or Decoder
    built = build(model, sequence_length=sequence_length, layers=layers)
    if not isinstance(built, Decoder):
        raise UsageError(
            f"{MODEL}={model.family} built a {type(built).__name__}, which is not a Decoder",
            keys=(MODEL,),
            remedy="a class that inherits from rampcli.models.decoder.Decoder",
        )
    return built
