"""Computes the size of a model from its settings, without building it."""

from rampcli.config.schema import Config, ModelConfig

BYTES_PER_NUMBER = 4
"""Weights and optimiser states are kept in fp32."""
STATES_PER_WEIGHT = 2
"""Optimiser states that AdamW keeps. Muon keeps one per weight of the layers' matrices."""


def head_size_of(model: ModelConfig) -> int:
    """Returns the width of an attention head."""
    return model.head_size or model.hidden_size // model.num_attention_heads


def count_parameters(model: ModelConfig, *, sequence_length: int) -> int:
    """Returns the number of parameters of the decoder."""
    width, head_size = model.hidden_size, head_size_of(model)
    query_key_value = _query_key_value(model)
    norm = width * (2 if model.normalization == "layernorm" else 1)
    biases = query_key_value + width + _input_matrices(model) * model.ffn_hidden_size + width
    layer = (
        _matrices(model)
        + 2 * norm
        + (biases if model.bias else 0)
        + (2 * head_size if model.qk_norm else 0)
    )
    embeddings = model.vocab_size * width * (1 if model.tie_embeddings else 2)
    positions = sequence_length * width if model.position_embedding == "learned" else 0
    return model.num_layers * layer + norm + embeddings + positions


def _query_key_value(model: ModelConfig) -> int:
    """Returns the width of a token's query, key and value vectors together."""
    return (
        model.num_attention_heads + 2 * (model.num_query_groups or model.num_attention_heads)
    ) * head_size_of(model)


def _input_matrices(model: ModelConfig) -> int:
    """Returns the number of input projections of a feed-forward layer. SwiGLU has a gate."""
    return 2 if model.activation == "swiglu" else 1


def _matrices(model: ModelConfig) -> int:
    """Returns the number of weights in the matrices of a layer."""
    attention = _query_key_value(model) + model.num_attention_heads * head_size_of(model)
    return model.hidden_size * (attention + (_input_matrices(model) + 1) * model.ffn_hidden_size)


def checkpoint_bytes(config: Config) -> int:
    """Returns the bytes of a checkpoint's tensors: weights and optimiser states."""
    numbers = (1 + STATES_PER_WEIGHT) * count_parameters(
        config.model, sequence_length=config.data.sequence_length
    )
    if config.optim.optimizer == "muon":
        numbers -= config.model.num_layers * _matrices(config.model)
    return BYTES_PER_NUMBER * numbers


def flops_per_token(model: ModelConfig, *, sequence_length: int) -> float:
    """Returns the floating-point operations of training on one token.

    A weight in a matrix product takes 6. Attention takes 12 x layers x width of all heads x tokens
    attended to (PaLM, arXiv 2204.02311, appendix B).
    """
    looked_up = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    if model.position_embedding == "learned":
        looked_up += sequence_length * model.hidden_size
    seen = min(sequence_length, model.sliding_window or sequence_length)
    attention = 12 * model.num_layers * model.num_attention_heads * head_size_of(model) * seen
    return 6 * (count_parameters(model, sequence_length=sequence_length) - looked_up) + attention
