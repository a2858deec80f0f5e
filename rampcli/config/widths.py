"""Widths of a model that follow from its settings."""

from rampcli.config.schema import ModelConfig


def head_size_of(model: ModelConfig) -> int:
    """Returns the width of an attention head."""
    return model.head_size or model.hidden_size // model.num_attention_heads


def vocabulary_of(model: ModelConfig) -> int:
    """Returns the size of the vocabulary, which is settled before a run starts."""
    assert model.vocab_size is not None
    return model.vocab_size


def groups_of(model: ModelConfig) -> int:
    """Returns the number of key and value heads."""
    return model.num_query_groups or model.num_attention_heads
