"""Computes the size of a model from what its parts declare, without building it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from rampcli.batch.averages import merge_start
from rampcli.models.parts import FP32, Part, Shape, layer_parts, outer_parts
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.settings.optimizers import optimizer_of


def shapes_of(parts: Iterable[Part], *, tensor: int = 1) -> list[Shape]:
    """Returns the shapes of the weights of some parts, on one of `tensor` tensor-parallel ranks."""
    return [shape for part in parts for shape in part.parameters(tensor).values()]


def matrices_of(shapes: Iterable[Shape]) -> list[Shape]:
    """Returns the shapes of matrices among those of weights."""
    return [shape for shape in shapes if len(shape) > 1]


def count_weights(shapes: Iterable[Shape], *, shards: int = 1) -> int:
    """Returns the numbers in a rank's shards of weights: rows are divided, rounded up."""
    return sum(-(-rows // shards) * prod(columns) for rows, *columns in shapes)


def count_parameters(model: ModelConfig, *, sequence_length: int) -> int:
    """Returns the number of parameters of the decoder."""
    outer = outer_parts(model, sequence_length=sequence_length).values()
    layer = layer_parts(model).values()
    return model.num_layers * count_weights(shapes_of(layer)) + count_weights(shapes_of(outer))


def count_embeddings(model: ModelConfig, *, sequence_length: int) -> int:
    """Returns the number of parameters that are embeddings of tokens and of learned positions."""
    outer = outer_parts(model, sequence_length=sequence_length)
    names = ("embedding", "position_embedding")
    return count_weights(shapes_of(outer[name] for name in names if name in outer))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameters of a model, and how many of them are embeddings."""

    parameters: int
    embeddings: int


def model_size(config: Config) -> ModelSize:
    """Returns the size of the model of a configuration."""
    model, length = config.model, config.data.sequence_length
    return ModelSize(
        parameters=count_parameters(model, sequence_length=length),
        embeddings=count_embeddings(model, sequence_length=length),
    )


def checkpoint_bytes(config: Config) -> int:
    """Returns the bytes of a checkpoint's tensors: weights, optimiser states and averages."""
    model, optimizer = config.model, optimizer_of(config.optim.optimizer)
    parameters = count_parameters(model, sequence_length=config.data.sequence_length)
    matrices = model.num_layers * count_weights(matrices_of(shapes_of(layer_parts(model).values())))
    states = optimizer.states * (parameters - matrices) + optimizer.matrix_states * matrices
    return FP32 * (parameters * (1 + count_averages(config)) + states)


def count_averages(config: Config) -> int:
    """Returns how many averages of the weights a run has, each with an fp32 copy of them."""
    is_merged = merge_start(config.average.merge) is not None
    return int(config.average.ema is not None) + int(is_merged)


def flops_per_token(model: ModelConfig, *, sequence_length: int, causal: bool = False) -> float:
    """Returns the floating-point operations of the matrix products of training on one token.

    A backward pass has twice the operations of a forward pass. So a weight takes 6, and attention
    12 x layers x width of all heads x tokens attended to (PaLM, arXiv 2204.02311, appendix B).

    Args:
        causal: count only the tokens that causal attention looks at, on average over a sequence,
            and not all tokens of the sequence or of the sliding window.
    """
    seen: float = min(sequence_length, model.sliding_window or sequence_length)
    if causal:  # the token at position i looks at min(i, window) tokens
        seen -= seen * (seen - 1) / (2 * sequence_length)
    outer = outer_parts(model, sequence_length=sequence_length).values()
    layer = layer_parts(model).values()
    forward = model.num_layers * sum(part.flops(seen) for part in layer)
    return 3 * (forward + sum(part.flops(seen) for part in outer))
