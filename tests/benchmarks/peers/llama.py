"""A Llama in plain PyTorch, for one training loop and no other use."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Llama(nn.Module):
    """Maps tokens and labels, int64 [batch, sequence], to the mean loss in nats per token."""

    def __init__(
        self,
        *,
        dim: int,
        layers: int,
        heads: int,
        groups: int,
        ffn: int,
        vocab_size: int,
        sequence_length: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, groups, ffn) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(dim))
        self.output = nn.Linear(dim, vocab_size, bias=False)
        half = dim // heads // 2
        angles = torch.outer(
            torch.arange(sequence_length), 10_000.0 ** -(torch.arange(half) / half)
        ).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.cos, self.sin)
        logits = self.output(F.rms_norm(hidden, self.norm.shape, self.norm, 1e-5))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def transformers_llama(
    *,
    dim: int,
    layers: int,
    heads: int,
    groups: int,
    ffn: int,
    vocab_size: int,
    sequence_length: int,
    tied: bool = False,
) -> nn.Module:
    """Returns transformers' Llama with the same settings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=dim,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            vocab_size=vocab_size,
            max_position_embeddings=sequence_length,
            tie_word_embeddings=tied,
            attn_implementation="sdpa",
            use_cache=False,
        )
    )


class Layer(nn.Module):
    """Attention with grouped queries, and a gated feed-forward layer."""

    def __init__(self, dim: int, heads: int, groups: int, ffn: int) -> None:
        super().__init__()
        self.head_size = dim // heads
        self.attention_norm = nn.Parameter(torch.ones(dim))
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, groups * self.head_size, bias=False)
        self.value = nn.Linear(dim, groups * self.head_size, bias=False)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(dim))
        self.gate = nn.Linear(dim, ffn, bias=False)
        self.up = nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = F.rms_norm(hidden, self.attention_norm.shape, self.attention_norm, 1e-5)
        query, key, value = (
            self.split(projection(normed)) for projection in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        hidden = hidden + self.mix(mixed.transpose(1, 2).flatten(2))
        normed = F.rms_norm(hidden, self.ffn_norm.shape, self.ffn_norm, 1e-5)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def split(self, projected: Tensor) -> Tensor:
        """Maps [batch, sequence, heads x head_size] to [batch, heads, sequence, head_size]."""
        return projected.unflatten(2, (-1, self.head_size)).transpose(1, 2)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies rotary positions that pair the two halves of a head."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin
