"""Layers with attention and feed-forward side by side, as in GPT-J: `model.family=parallel`."""

from typing import Any

from rampcli.extend import model


@model("parallel")
def parallel(shape: Any, *, sequence_length: int, layers: range | None) -> Any:
    """Returns a decoder of parallel layers."""
    from rampcli_extras.parallel import ParallelDecoder  # imports torch

    return ParallelDecoder(shape, sequence_length=sequence_length, layers=layers)
