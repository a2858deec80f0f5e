"""One decoder-only transformer; `ModelConfig` makes it a Llama, a Mistral, a Qwen3 or a GPT."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rampcli.config.choices import Activation, Normalization, PositionEmbedding
from rampcli.config.model_size import head_size_of
from rampcli.config.schema import ModelConfig
from rampcli.models.loss import summed_loss
from rampcli.models.norm import RMSNorm
from rampcli.models.rotary import RotaryTable, rotate


class Decoder(nn.Module):
    """Token ids int64 [batch, sequence] to logits [batch, sequence, vocab_size], or with labels to their loss.

    Pre-normalised blocks with a causal mask. Llama: RMSNorm, rotary positions, SwiGLU (arXiv 2302.13971). GPT: LayerNorm, learned
    positions, GELU, biases (Radford et al., 2019; arXiv 2005.14165). Mistral: a sliding window (arXiv 2310.06825). Qwen3: normalised
    queries and keys (arXiv 2505.09388).

    A part of the layers is a model too, with the names that its weights have in the whole: the first part begins with tokens, the others
    with the hidden states [batch, sequence, hidden] of the part before, and all but the last end with such.

    Args:
        model: the shape.
        sequence_length: the longest sequence, in tokens.
        layers: which of the model's layers; all, if None.

    Attributes:
        loss: of the last hidden states, the output projection and labels; a tensor axis puts another in its place.
    """

    def __init__(
        self, model: ModelConfig, *, sequence_length: int, layers: range | None = None
    ) -> None:
        super().__init__()
        self.model = model
        here = range(model.num_layers) if layers is None else layers
        self.is_first, self.is_last = here.start == 0, here.stop == model.num_layers
        self.embedding: nn.Embedding | None = None
        self.position_embedding: nn.Embedding | None = None
        self.rotary: RotaryTable | None = None
        self.loss = summed_loss
        self.norm: nn.Module | None = None
        self.output: nn.Linear | None = None
        if self.is_first or (self.is_last and model.tie_embeddings):
            self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        if self.is_first and model.position_embedding is PositionEmbedding.learned:
            self.position_embedding = nn.Embedding(sequence_length, model.hidden_size)
        if model.position_embedding is PositionEmbedding.rope:
            self.rotary = RotaryTable(model, sequence_length=sequence_length)
        self.layers = nn.ModuleDict({str(index): Block(model) for index in here})
        if self.is_last:
            self.norm = build_norm(model)
            self.output = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        self.tie()
        self.register_buffer(
            "positions", torch.empty(sequence_length, dtype=torch.int64), persistent=False
        )
        self.positions: Tensor

    def tie(self) -> None:
        """Let the output projection be the token embedding, where it is."""
        if self.model.tie_embeddings and self.output is not None and self.embedding is not None:
            self.output.weight = self.embedding.weight

    def weight_at_both_ends(self) -> nn.Parameter | None:
        """The tied weight, where the first part and the last are not one and this is either."""
        if (
            self.model.tie_embeddings
            and self.is_first != self.is_last
            and self.embedding is not None
        ):
            return self.get_parameter("embedding.weight")
        return None

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by name, each in one part of the model only: a tied weight in the first."""
        copied = None if self.is_first else self.weight_at_both_ends()
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if parameter is not copied
        }

    def fill_buffers(self) -> None:
        """Compute what is not learned, on the device where it lives; a model built on the meta device has none of it yet."""
        self.positions.copy_(torch.arange(len(self.positions)))
        if self.rotary is not None:
            self.rotary.fill()

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | None = None,
        cache: "Cache | None" = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Tokens or hidden states to hidden states, logits or a loss.

        Args:
            hidden: tokens for the first part, else hidden states.
            positions: places of the tokens, int64 [sequence]; from 0 on, if None. [batch, sequence]: places in documents, which begin
                anew with each, and no token sees another document.
            cache: keys and values of the tokens before, to which those of these are added.
            labels: for the last part, int64 [batch, sequence], those below 0 do not count: it returns the cross entropy in nats, summed
                over the others, a scalar in fp32, and never holds all logits.
        """
        places = self.positions if positions is None else positions
        if self.is_first:
            assert self.embedding is not None
            tokens, places = hidden, places[..., : hidden.shape[1]]
            hidden = self.embedding(tokens)
            if self.position_embedding is not None:
                hidden = hidden + self.position_embedding(places)
        rotation = None if self.rotary is None else self.rotary(places)
        in_documents = places if places.dim() == 2 else None
        for index, layer in self.layers.items():
            hidden = layer(
                hidden,
                rotation,
                in_documents,
                None if cache is None else cache.setdefault(index, []),
            )
        if self.norm is not None and self.output is not None:
            hidden = self.norm(hidden)
            hidden = (
                self.output(hidden) if labels is None else self.loss(hidden, self.output, labels)
            )
        return hidden


Cache = dict[str, list[Tensor]]
"""By layer: the keys and the values of the tokens so far, each [batch, groups, sequence, head_size]; empty before the first."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual around both; [batch, sequence, hidden] to the same."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(model)
        self.attention = Attention(model)
        self.ffn_norm = build_norm(model)
        self.ffn = SwiGLU(model) if model.activation is Activation.swiglu else GELU(model)

    def forward(  # noqa: D102
        self,
        hidden: Tensor,
        rotation: Tensor | None,
        in_documents: Tensor | None = None,
        cache: list[Tensor] | None = None,
    ) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation, in_documents, cache)
        output: Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return output


class Attention(nn.Module):
    """Causal grouped-query attention (arXiv 2305.13245); [batch, sequence, hidden] to the same.

    It works on the heads that its projections give, so that a rank may have some of them.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.head_size = head_size_of(model)
        width = model.num_attention_heads * self.head_size
        group_width = (model.num_query_groups or model.num_attention_heads) * self.head_size
        self.query = nn.Linear(model.hidden_size, width, bias=model.bias)
        self.key = nn.Linear(model.hidden_size, group_width, bias=model.bias)
        self.value = nn.Linear(model.hidden_size, group_width, bias=model.bias)
        self.output = nn.Linear(width, model.hidden_size, bias=model.bias)
        self.query_norm = RMSNorm(self.head_size, eps=model.norm_epsilon) if model.qk_norm else None
        self.key_norm = RMSNorm(self.head_size, eps=model.norm_epsilon) if model.qk_norm else None
        self.core = CausalAttention(sliding_window=model.sliding_window)

    def forward(  # noqa: D102
        self,
        hidden: Tensor,
        rotation: Tensor | None,
        in_documents: Tensor | None = None,
        cache: list[Tensor] | None = None,
    ) -> Tensor:
        query, key, value = (
            self._split(projection(hidden)) for projection in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None:
            if cache:
                key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
            cache[:] = key, value
        mixed = self.core(query, key, value, in_documents)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, projected: Tensor) -> Tensor:
        """[batch, sequence, heads x head_size] to [batch, sequence, heads, head_size]."""
        batch, sequence, _ = projected.shape
        return projected.view(batch, sequence, -1, self.head_size)


class CausalAttention(nn.Module):
    """What heads take from the tokens up to their own; no weights.

    Queries [batch, heads, some, head_size] of the last tokens, keys and values [batch, groups, sequence, head_size] of all of them, and
    these tokens' places in their documents [batch, some], if they see only those; [batch, heads, some, head_size].
    """

    def __init__(self, *, sliding_window: int | None) -> None:
        super().__init__()
        self.sliding_window = sliding_window

    def forward(  # noqa: D102
        self, query: Tensor, key: Tensor, value: Tensor, in_documents: Tensor | None = None
    ) -> Tensor:
        some, sequence = query.shape[2], key.shape[2]
        sees_all = in_documents is None and (
            self.sliding_window is None or self.sliding_window >= sequence
        )
        is_causal = sees_all and some == sequence
        repeats = query.shape[1] // key.shape[1]
        # The kernels for masks, and those for fp32 on a GPU, want as many heads of keys as of queries.
        has_groups = (
            repeats > 1
            and is_causal
            and (query.device.type == "cpu" or query.dtype is not torch.float32)
        )
        if repeats > 1 and not has_groups:
            key, value = (
                key.repeat_interleave(repeats, dim=1),
                value.repeat_interleave(repeats, dim=1),
            )
        if is_causal:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=has_groups
            )
        mask = (
            None
            if sees_all and some == 1
            else self._mask(some, sequence, in_documents, device=query.device)
        )
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def _mask(
        self, some: int, sequence: int, in_documents: Tensor | None, *, device: torch.device
    ) -> Tensor:
        """Which tokens each query sees, bool [some, sequence], or [batch, 1, some, sequence] where documents are told apart."""
        behind = torch.arange(sequence - some, sequence, device=device)[:, None] - torch.arange(
            sequence, device=device
        )
        mask = (behind >= 0) & (behind < (self.sliding_window or sequence))
        return mask if in_documents is None else mask & (behind <= in_documents[:, None, :, None])


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


def build_norm(model: ModelConfig) -> nn.Module:
    """The normalisation of `model.normalization`, over the hidden size."""
    if model.normalization is Normalization.layernorm:
        return nn.LayerNorm(model.hidden_size, eps=model.norm_epsilon)
    return RMSNorm(model.hidden_size, eps=model.norm_epsilon)
