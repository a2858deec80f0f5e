"""Computes the size of a model from its settings, without building it."""

from collections.abc import Iterable

from rampcli.config.schema import Config, ModelConfig

BYTES_PER_NUMBER = 4
"""Weights and optimiser states are kept in fp32."""
STATES_PER_WEIGHT = 2
"""Optimiser states that AdamW keeps. Muon keeps one per weight of the layers' matrices."""

Shape = tuple[int, int]
"""Rows and columns of a weight. A vector has one column."""


def input_matrices_of(model: ModelConfig) -> int:
    """Returns the number of input projections of a feed-forward layer. SwiGLU has a gate."""
    return 2 if model.activation == "swiglu" else 1


def layer_shapes(model: ModelConfig, *, tensor: int = 1) -> list[Shape]:
    """Returns the shapes of a layer's weights on one of `tensor` tensor-parallel ranks."""
    width, head_size = model.hidden_size, model.head_width
    inner, queries = (
        model.ffn_hidden_size // tensor,
        model.num_attention_heads * head_size // tensor,
    )
    keys = model.key_heads * head_size // tensor
    rows = [queries, keys, keys, *[inner] * input_matrices_of(model)]
    shapes = [*((each, width) for each in rows), (width, queries), (width, inner)]
    shapes += [(width, 1)] * 2 * _vectors_per_norm(model)
    if model.bias:
        shapes += [(each, 1) for each in (*rows, width, width)]
    if model.qk_norm:
        shapes += [(head_size, 1)] * 2
    return shapes


def other_shapes(
    model: ModelConfig,
    *,
    sequence_length: int,
    tensor: int = 1,
    is_first: bool = True,
    is_last: bool = True,
) -> list[Shape]:
    """Returns the shapes of the weights outside the layers, in a pipeline stage.

    Args:
        model: settings of the model.
        sequence_length: tokens of a sequence.
        tensor: number of tensor-parallel ranks.
        is_first: whether the stage embeds tokens.
        is_last: whether the stage computes the loss.
    """
    shapes, vocabulary = [], (model.vocabulary // tensor, model.hidden_size)
    if is_first or (is_last and model.tie_embeddings):
        shapes.append(vocabulary)
    if is_first and model.position_embedding == "learned":
        shapes.append((sequence_length, model.hidden_size // tensor))
    if is_last:
        shapes += [(model.hidden_size, 1)] * _vectors_per_norm(model)
        if not model.tie_embeddings:
            shapes.append(vocabulary)
    return shapes


def _vectors_per_norm(model: ModelConfig) -> int:
    return 2 if model.normalization == "layernorm" else 1


def count_parameters(model: ModelConfig, *, sequence_length: int) -> int:
    """Returns the number of parameters of the decoder."""
    others = other_shapes(model, sequence_length=sequence_length)
    return model.num_layers * _count(layer_shapes(model)) + _count(others)


def _count(shapes: Iterable[Shape]) -> int:
    return sum(rows * columns for rows, columns in shapes)


def checkpoint_bytes(config: Config) -> int:
    """Returns the bytes of a checkpoint's tensors: weights and optimiser states."""
    numbers = (1 + STATES_PER_WEIGHT) * count_parameters(
        config.model, sequence_length=config.data.sequence_length
    )
    if config.optim.optimizer == "muon":
        matrices = (shape for shape in layer_shapes(config.model) if shape[1] > 1)
        numbers -= config.model.num_layers * _count(matrices)
    return BYTES_PER_NUMBER * numbers


def flops_per_token(model: ModelConfig, *, sequence_length: int, causal: bool = False) -> float:
    """Returns the floating-point operations of training on one token.

    A weight in a matrix product takes 6. Attention takes 12 x layers x width of all heads x tokens
    attended to (PaLM, arXiv 2204.02311, appendix B).

    Args:
        model: settings of the model.
        sequence_length: tokens of a sequence.
        causal: count only the tokens that causal attention looks at, on average over a sequence,
            and not all tokens of the sequence or of the sliding window.
    """
    looked_up = 0 if model.tie_embeddings else model.vocabulary * model.hidden_size
    if model.position_embedding == "learned":
        looked_up += sequence_length * model.hidden_size
    seen: float = min(sequence_length, model.sliding_window or sequence_length)
    if causal:  # the token at position i looks at min(i, window) tokens
        seen -= seen * (seen - 1) / (2 * sequence_length)
    attention = 12 * model.num_layers * model.num_attention_heads * model.head_width * seen
    return 6 * (count_parameters(model, sequence_length=sequence_length) - looked_up) + attention
