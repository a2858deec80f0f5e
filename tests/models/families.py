"""Small models, one of each family that transformers has a class for."""

from rampcli.settings.model import ModelConfig

SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "init_std": 0.2,
}
GPT = {
    "normalization": "layernorm",
    "activation": "gelu",
    "position_embedding": "learned",
    "bias": True,
    "tie_embeddings": True,
}
"""What makes a decoder one of GPT's family, and not of Llama's."""
LLAMA = SMALL | {"num_query_groups": 2}
FAMILIES = {
    "llama2": ModelConfig(**SMALL),
    "llama3": ModelConfig(**LLAMA, rotary_base=500_000.0),
    "llama31": ModelConfig(
        **LLAMA,
        rotary_base=500_000.0,
        rotary_scale_factor=8.0,
        rotary_original_length=16,
        head_size=32,
    ),
    "llama with biases": ModelConfig(**LLAMA, bias=True, tie_embeddings=True),
    "mistral": ModelConfig(**LLAMA, sliding_window=7),
    "qwen3": ModelConfig(
        **LLAMA, qk_norm=True, head_size=24, norm_epsilon=1e-6, tie_embeddings=True
    ),
    "gpt3": ModelConfig(**SMALL, **GPT),
}
