"""Decoder-only transformer; `ModelConfig` makes it a Llama, a Mistral, a Qwen3 or a GPT.

A class may declare `tensor_plan`: how `rampcli.parallel.tensor` splits its submodules, by name.
The key "" stands for the module itself; the values are keys of `rampcli.parallel.tensor.STYLES`.
A new attention or feed-forward layer declares its own plan and needs no change there.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rampcli.config.model_size import head_size_of
from rampcli.config.schema import ModelConfig
from rampcli.models.cache import Cache, LayerCache
from rampcli.models.loss import summed_loss
from rampcli.models.norm import RMSNorm
from rampcli.models.rotary import RotaryTable, rotate

Loss = Callable[[Tensor, nn.Linear, Tensor], Tensor]
"""Computes a result from the last hidden states, the output projection and the labels."""


class Decoder(nn.Module):
    """Decoder-only transformer with pre-normalised blocks and a causal mask.

    Maps token ids, int64 [batch, sequence], to logits [batch, sequence, vocab_size], or to the
    summed loss if labels are given.

    Llama: RMSNorm, rotary positions, SwiGLU (arXiv 2302.13971). GPT: LayerNorm, learned positions,
    GELU, biases (Radford et al., 2019; arXiv 2005.14165). Mistral: sliding window
    (arXiv 2310.06825). Qwen3: normalised queries and keys (arXiv 2505.09388).

    A pipeline stage is a decoder of some of the layers, in which weights keep the names that they
    have in the whole model. The first stage takes tokens. The others take the hidden states
    [batch, sequence, hidden] of the stage before them. All but the last return hidden states.

    Args:
        model: shape of the model.
        sequence_length: longest sequence, in tokens.
        layers: layers to build; None builds all of them.

    Attributes:
        loss: computes the result of a forward pass with labels. By default the summed cross
            entropy. A tensor-parallel model replaces it; reinforcement learning replaces it by
            `rampcli.models.log_probs.token_log_probs`.
    """

    tensor_plan: ClassVar[dict[str, str]] = {
        "embedding": "token_embedding",
        "position_embedding": "position_embedding",
        "norm": "sequence",
        "output": "logits",
    }

    def __init__(
        self, model: ModelConfig, *, sequence_length: int, layers: range | None = None
    ) -> None:
        super().__init__()
        self.model = model
        layers = range(model.num_layers) if layers is None else layers
        self.is_first, self.is_last = layers.start == 0, layers.stop == model.num_layers
        self.embedding: nn.Embedding | None = None
        self.position_embedding: nn.Embedding | None = None
        self.rotary: RotaryTable | None = None
        self.loss: Loss = summed_loss
        self.norm: nn.Module | None = None
        self.output: nn.Linear | None = None
        if self.is_first or (self.is_last and model.tie_embeddings):
            self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        if self.is_first and model.position_embedding == "learned":
            self.position_embedding = nn.Embedding(sequence_length, model.hidden_size)
        if model.position_embedding == "rope":
            self.rotary = RotaryTable(model, sequence_length=sequence_length)
        self.layers = nn.ModuleDict({str(index): Block(model) for index in layers})
        if self.is_last:
            self.norm = build_norm(model)
            self.output = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        self.tie()
        self.register_buffer(
            "positions", torch.empty(sequence_length, dtype=torch.int64), persistent=False
        )
        self.positions: Tensor

    def tie(self) -> None:
        """Uses the token embedding as output projection, if the model ties them."""
        if self.model.tie_embeddings and self.output is not None and self.embedding is not None:
            self.output.weight = self.embedding.weight

    def weight_tied_across_stages(self) -> nn.Parameter | None:
        """Returns the tied weight if this is the first or the last of several stages, else None."""
        if (
            self.model.tie_embeddings
            and self.is_first != self.is_last
            and self.embedding is not None
        ):
            return self.get_parameter("embedding.weight")
        return None

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Returns parameters by name. The first stage owns a weight tied across stages."""
        copied = None if self.is_first else self.weight_tied_across_stages()
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if parameter is not copied
        }

    def fill_buffers(self) -> None:
        """Computes the buffers on their device. Needed after building on the meta device."""
        self.positions.copy_(torch.arange(len(self.positions)))
        if self.rotary is not None:
            self.rotary.fill()

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Runs the layers.

        Args:
            hidden: tokens for the first stage, else hidden states.
            positions: positions of the tokens, int64 [sequence]; None counts from 0, or goes on
                from those of the cache. With shape [batch, sequence] they are positions within
                documents, which start again at 0 in each document, and tokens attend to their own
                document only.
            cache: keys and values of the preceding tokens; those of these tokens are appended.
            labels: for the last stage, int64 [batch, sequence]; negative labels are ignored.

        Returns:
            Hidden states, or the last stage's logits. With a cache: the logits of the last token,
            [batch, 1, vocab_size]. With labels: the result of `loss`. By default this is the cross
            entropy in nats, summed over the labels that are not ignored, a scalar in fp32. The
            logits are then never in memory as a whole.
        """
        count = hidden.shape[1]
        if positions is None:
            positions = self.positions if cache is None else cache.positions(self.positions, count)
        if self.is_first:
            assert self.embedding is not None
            tokens, positions = hidden, positions[..., :count]
            hidden = self.embedding(tokens)
            if self.position_embedding is not None:
                hidden = hidden + self.position_embedding(positions)
        rotation = None if self.rotary is None else self.rotary(positions)
        document_positions = positions if positions.dim() == 2 else None
        for index, layer in self.layers.items():
            hidden = layer(
                hidden,
                rotation,
                document_positions,
                None if cache is None else cache.layer(index),
            )
        if cache is not None:
            cache.length += count
            hidden = hidden[:, -1:] if self.is_last else hidden
        if self.norm is not None and self.output is not None:
            hidden = self.norm(hidden)
            hidden = (
                self.output(hidden) if labels is None else self.loss(hidden, self.output, labels)
            )
        return hidden


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual around it.

    Maps [batch, sequence, hidden] to the same shape.
    """

    tensor_plan: ClassVar[dict[str, str]] = {"attention_norm": "sequence", "ffn_norm": "sequence"}

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(model)
        self.attention = build_attention(model)
        self.ffn_norm = build_norm(model)
        self.ffn = FEED_FORWARDS[model.activation](model)

    def forward(  # noqa: D102
        self,
        hidden: Tensor,
        rotation: Tensor | None,
        document_positions: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        hidden = hidden + self.attention(
            self.attention_norm(hidden), rotation, document_positions, cache
        )
        output: Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return output


class Attention(nn.Module):
    """Causal grouped-query attention (arXiv 2305.13245).

    Maps [batch, sequence, hidden] to the same shape. The number of heads is read from the
    projections' outputs, so a tensor-parallel rank can hold some of the heads.

    Attributes:
        core: attention proper, without weights. `rampcli.parallel.context` wraps the `core` of
            every module that has one.
    """

    tensor_plan: ClassVar[dict[str, str]] = {
        "": "gathered_input",
        "query": "columns",
        "key": "columns",
        "value": "columns",
        "query_norm": "heads",
        "key_norm": "heads",
        "output": "rows",
    }

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
        document_positions: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        query, key, value = (
            self._split_heads(projection(hidden))
            for projection in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if cache is not None:
            key, value = cache.append(key, value)
        mixed = self.core(query, key, value, document_positions)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _split_heads(self, projected: Tensor) -> Tensor:
        """Reshapes [batch, sequence, heads x head_size] to [batch, sequence, heads, head_size]."""
        batch, sequence, _ = projected.shape
        return projected.view(batch, sequence, -1, self.head_size)


class CausalAttention(nn.Module):
    """Scaled dot-product attention in which a token sees itself and the tokens before it.

    Args (of the forward pass):
        query: [batch, heads, queries, head_size], of the last tokens of the sequence.
        key, value: [batch, groups, sequence, head_size], of all tokens.
        document_positions: positions of the queries within their documents, [batch, queries]. If
            given, tokens attend to their own document only.

    Returns [batch, heads, queries, head_size].
    """

    def __init__(self, *, sliding_window: int | None) -> None:
        super().__init__()
        self.sliding_window = sliding_window

    def forward(  # noqa: D102
        self, query: Tensor, key: Tensor, value: Tensor, document_positions: Tensor | None = None
    ) -> Tensor:
        queries, sequence = query.shape[2], key.shape[2]
        if queries == 1:
            return self._attend_with_last(query, key, value, document_positions)
        window = self.sliding_window or sequence
        is_causal = document_positions is None and queries == sequence <= window
        repeats = query.shape[1] // key.shape[1]
        # Kernels with a mask, and those for fp32 on a GPU, need one key head per query head.
        has_groups = (
            repeats > 1
            and is_causal
            and (query.device.type == "cpu" or query.dtype is not torch.float32)
        )
        if repeats > 1 and not has_groups:
            key, value = (heads.repeat_interleave(repeats, dim=1) for heads in (key, value))
        if is_causal:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=has_groups
            )
        mask = self._mask(queries, sequence, document_positions, device=query.device)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def _attend_with_last(
        self, query: Tensor, key: Tensor, value: Tensor, document_positions: Tensor | None
    ) -> Tensor:
        """Returns the attention of the last token, [batch, heads, 1, head_size].

        The query heads of a group become the queries of one head, so no key head is copied.
        """
        if self.sliding_window is not None:
            key, value = (heads[:, :, -self.sliding_window :] for heads in (key, value))
        mask = None
        if document_positions is not None:
            distance = torch.arange(key.shape[2] - 1, -1, -1, device=query.device)
            mask = (distance <= document_positions)[:, None, None]
        by_group = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
        mixed = F.scaled_dot_product_attention(by_group, key, value, attn_mask=mask)
        return mixed.reshape(query.shape)

    def _mask(
        self,
        queries: int,
        sequence: int,
        document_positions: Tensor | None,
        *,
        device: torch.device,
    ) -> Tensor:
        """Returns which tokens each query attends to.

        bool [queries, sequence], or [batch, 1, queries, sequence] with document positions.
        """
        distance = torch.arange(sequence - queries, sequence, device=device)[
            :, None
        ] - torch.arange(sequence, device=device)
        mask = (distance >= 0) & (distance < (self.sliding_window or sequence))
        if document_positions is None:
            return mask
        return mask & (distance <= document_positions[:, None, :, None])


class SwiGLU(nn.Module):
    """Gated feed-forward layer (arXiv 2002.05202)."""

    tensor_plan: ClassVar[dict[str, str]] = {
        "": "gathered_input",
        "gate": "columns",
        "up": "columns",
        "output": "rows",
    }

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.up = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.output = nn.Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        output: Tensor = self.output(F.silu(self.gate(hidden)) * self.up(hidden))
        return output


class GELU(nn.Module):
    """Feed-forward layer with GPT-2's tanh approximation of GELU."""

    tensor_plan: ClassVar[dict[str, str]] = {
        "": "gathered_input",
        "up": "columns",
        "output": "rows",
    }

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.output = nn.Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        output: Tensor = self.output(F.gelu(self.up(hidden), approximate="tanh"))
        return output


FEED_FORWARDS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "swiglu": SwiGLU,
    "gelu": GELU,
}
"""Feed-forward layers by `model.activation`; each maps [batch, sequence, hidden] to the same shape.

The projection into the residual stream is called `output`: `rampcli.models.initialize` draws it
with a smaller standard deviation.
"""


def build_attention(model: ModelConfig) -> nn.Module:
    """Returns a block's attention layer, which has the arguments of `Attention.forward`."""
    return Attention(model)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": RMSNorm,
}
"""Normalisations by `model.normalization`, called with a size and `eps`."""


def build_norm(model: ModelConfig) -> nn.Module:
    """Returns the normalisation of `model.normalization` over the hidden size."""
    return NORMS[model.normalization](model.hidden_size, eps=model.norm_epsilon)
