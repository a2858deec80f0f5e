"""One decoder-only transformer; `ModelConfig` makes it a Llama or a GPT."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rampcli.config.schema import Activation, ModelConfig, Normalization, PositionEmbedding


class Decoder(nn.Module):
    """Token ids int64 [batch, sequence] to logits [batch, sequence, vocab_size].

    Pre-normalised blocks with a causal mask. Llama: RMSNorm, rotary positions, SwiGLU (arXiv 2302.13971). GPT: LayerNorm, learned
    positions, GELU, biases (Radford et al., 2019; arXiv 2005.14165).

    Args:
        model: the shape.
        sequence_length: the longest sequence, in tokens.
    """

    def __init__(self, model: ModelConfig, *, sequence_length: int) -> None:
        super().__init__()
        self.model = model
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions: nn.Embedding | None = None
        self.rotary: RotaryTable | None = None
        if model.position_embedding is PositionEmbedding.learned:
            self.positions = nn.Embedding(sequence_length, model.hidden_size)
        else:
            head_size = model.hidden_size // model.num_attention_heads
            self.rotary = RotaryTable(head_size=head_size, base=model.rotary_base, sequence_length=sequence_length)
        self.layers = nn.ModuleList(Block(model) for _ in range(model.num_layers))
        self.norm = build_norm(model)
        self.output = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        if model.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        hidden = self.embedding(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        rotation = None if self.rotary is None else self.rotary(tokens.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, rotation)
        logits: Tensor = self.output(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual around both; [batch, sequence, hidden] to the same."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(model)
        self.attention = Attention(model)
        self.ffn_norm = build_norm(model)
        self.ffn = SwiGLU(model) if model.activation is Activation.swiglu else GELU(model)

    def forward(self, hidden: Tensor, rotation: Tensor | None) -> Tensor:  # noqa: D102
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        output: Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return output


class Attention(nn.Module):
    """Causal grouped-query attention (arXiv 2305.13245); [batch, sequence, hidden] to the same."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads = model.num_attention_heads
        self.groups = model.num_query_groups or model.num_attention_heads
        self.head_size = model.hidden_size // model.num_attention_heads
        self.query = nn.Linear(model.hidden_size, self.heads * self.head_size, bias=model.bias)
        self.key = nn.Linear(model.hidden_size, self.groups * self.head_size, bias=model.bias)
        self.value = nn.Linear(model.hidden_size, self.groups * self.head_size, bias=model.bias)
        self.output = nn.Linear(self.heads * self.head_size, model.hidden_size, bias=model.bias)

    def forward(self, hidden: Tensor, rotation: Tensor | None) -> Tensor:  # noqa: D102
        query = self._split(self.query(hidden), self.heads)
        key = self._split(self.key(hidden), self.groups)
        value = self._split(self.value(hidden), self.groups)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if self.groups < self.heads:
            key = key.repeat_interleave(self.heads // self.groups, dim=1)
            value = value.repeat_interleave(self.heads // self.groups, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, projected: Tensor, heads: int) -> Tensor:
        """[batch, sequence, heads x head_size] to [batch, heads, sequence, head_size]."""
        batch, sequence, _ = projected.shape
        return projected.view(batch, sequence, heads, self.head_size).transpose(1, 2)


class SwiGLU(nn.Module):
    """Gated feed-forward layer (arXiv 2002.05202)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.up = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.output = nn.Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        output: Tensor = self.output(F.silu(self.gate(hidden)) * self.up(hidden))
        return output


class GELU(nn.Module):
    """Feed-forward layer with the tanh form of GELU, as GPT-2 has it."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.output = nn.Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        output: Tensor = self.output(F.gelu(self.up(hidden), approximate="tanh"))
        return output


class RotaryTable(nn.Module):
    """Cosines and sines of rotary positions (arXiv 2104.09864), fp32 [2, sequence_length, head_size]."""

    def __init__(self, *, head_size: int, base: float, sequence_length: int) -> None:
        super().__init__()
        self.head_size, self.base, self.sequence_length = head_size, base, sequence_length
        self.register_buffer("table", torch.empty(2, sequence_length, head_size), persistent=False)
        self.table: Tensor

    def fill(self) -> None:
        """Compute the table on the device where it lives; a model built on the meta device has none yet."""
        frequencies = self.base ** -(torch.arange(0, self.head_size, 2, dtype=torch.float64) / self.head_size)
        angles = torch.outer(torch.arange(self.sequence_length, dtype=torch.float64), frequencies).repeat(1, 2)
        self.table.copy_(torch.stack([angles.cos(), angles.sin()]))

    def forward(self, sequence: int) -> Tensor:  # noqa: D102
        return self.table[:, :sequence]


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn queries or keys [batch, heads, sequence, head_size] by their positions; halves are paired, as Hugging Face's Llama has it."""
    cos, sin = rotation.to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    turned: Tensor = heads * cos + torch.cat([-second, first], dim=-1) * sin
    return turned


def build_norm(model: ModelConfig) -> nn.Module:
    """The normalisation of `model.normalization`, over the hidden size."""
    if model.normalization is Normalization.layernorm:
        return nn.LayerNorm(model.hidden_size, eps=model.norm_epsilon)
    return nn.RMSNorm(model.hidden_size, eps=model.norm_epsilon)


def residual_init_std(model: ModelConfig) -> float:
    """Standard deviation for projections that write into the residual stream: scaled by the number of them (Radford et al., 2019)."""
    return model.init_std / math.sqrt(2 * model.num_layers)
