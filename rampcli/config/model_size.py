"""How large a model is, by arithmetic: no model is built."""

from rampcli.config.schema import Activation, ModelConfig, Normalization, PositionEmbedding


def count_parameters(model: ModelConfig, *, sequence_length: int) -> int:
    """Parameters of the decoder that these settings describe."""
    width, heads = model.hidden_size, model.num_attention_heads
    groups = model.num_query_groups or heads
    norm = width * (2 if model.normalization is Normalization.layernorm else 1)
    query_key_value = width + 2 * width * groups // heads
    weights = width * query_key_value + width * width
    biases = query_key_value + width
    inner = 2 if model.activation is Activation.swiglu else 1
    weights += (inner + 1) * width * model.ffn_hidden_size
    biases += inner * model.ffn_hidden_size + width
    layer = weights + 2 * norm + (biases if model.bias else 0)
    embeddings = model.vocab_size * width * (1 if model.tie_embeddings else 2)
    positions = sequence_length * width if model.position_embedding is PositionEmbedding.learned else 0
    return model.num_layers * layer + norm + embeddings + positions


def flops_per_token(model: ModelConfig, *, sequence_length: int) -> float:
    """Floating-point operations that training one token takes: 6 per weight in a matrix product, and attention's
    12 x layers x hidden size x sequence length (PaLM, arXiv 2204.02311, appendix B)."""
    looked_up = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
    if model.position_embedding is PositionEmbedding.learned:
        looked_up += sequence_length * model.hidden_size
    attention = 12 * model.num_layers * model.hidden_size * sequence_length
    return 6 * (count_parameters(model, sequence_length=sequence_length) - looked_up) + attention
