"""Decoder-only transformer; `ModelConfig` makes it a Llama, a Mistral, a Qwen3 or a GPT.

`rampcli.models.parts` declares what its parts cost, and how tensor parallelism splits attention and
the feed-forward layer.
"""

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import ClassVar

import torch
from torch import Tensor, nn

from rampcli.config.extension_settings import extension_function
from rampcli.errors import UsageError
from rampcli.models.attention import Attention, RotaryTable
from rampcli.models.cache import Cache, LayerCache
from rampcli.models.linear import OutputProjection, build_linear
from rampcli.models.loss import summed_loss
from rampcli.models.masks import BuildMask, Mask, build_mask
from rampcli.models.norm import build_norm
from rampcli.models.parts import FeedForwardPart, HeadPart, outer_parts
from rampcli.plugins.extensions import FAMILY_KEY
from rampcli.settings.model import ModelConfig
from rampcli.settings.model_parts import POSITION_EMBEDDINGS

Loss = Callable[[Tensor, OutputProjection, Tensor], Tensor]
"""Computes a result from the last hidden states, the output projection and the labels.

It calls the projection once."""


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
        sequence_length: longest sequence, in tokens.
        layers: layers to build; None builds all of them.

    Attributes:
        loss: computes the result of a forward pass with labels. By default the summed cross
            entropy. A tensor-parallel model replaces it; reinforcement learning replaces it by
            `rampcli.models.loss.token_log_probs`.
        mask: builds the mask of a forward pass, which all layers share. A context-parallel model
            replaces it.
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
        self.loss: Loss = summed_loss
        self.mask: BuildMask = build_mask
        parts = outer_parts(
            model, sequence_length=sequence_length, is_first=self.is_first, is_last=self.is_last
        )
        width, is_rotary = (
            model.hidden_size,
            POSITION_EMBEDDINGS[model.position_embedding].is_rotary,
        )
        self.embedding = nn.Embedding(model.vocabulary, width) if "embedding" in parts else None
        self.position_embedding = (
            nn.Embedding(sequence_length, width) if "position_embedding" in parts else None
        )
        self.rotary = RotaryTable(model, sequence_length=sequence_length) if is_rotary else None
        self.layers = nn.ModuleDict({str(index): self.build_layer(model) for index in layers})
        self.norm = build_norm(model) if self.is_last else None
        self.output = OutputProjection(HeadPart(model).linear) if self.is_last else None
        self.tie()
        self.register_buffer(
            "positions", torch.empty(sequence_length, dtype=torch.int64), persistent=False
        )
        self.positions: Tensor

    def build_layer(self, model: ModelConfig) -> nn.Module:
        """Returns one layer, which takes the arguments of `Block`. A family may override this."""
        return Block(model)

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

    def stage_parameters(self) -> dict[str, nn.Parameter]:
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
        mask = self.mask(
            positions if positions.dim() == 2 else None,
            queries=positions.shape[-1],
            sequence=positions.shape[-1] + (0 if cache is None else cache.length),
            model=self.model,
            like=hidden,
            is_cached=cache is not None,
        )
        for index, layer in self.layers.items():
            hidden = layer(
                hidden,
                rotation,
                mask,
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


def build_decoder(
    model: ModelConfig, *, sequence_length: int, layers: range | None = None
) -> Decoder:
    """Returns a model of `model.family` on the meta device, with the arguments of `Decoder`.

    Raises:
        UsageError: the family is an extension that is not known here, or not a `Decoder`.
    """
    build = extension_function(FAMILY_KEY, model.family, model) or Decoder
    with torch.device("meta"):
        built = build(model, sequence_length=sequence_length, layers=layers)
    if not isinstance(built, Decoder):
        raise UsageError(
            f"{FAMILY_KEY}={model.family} built a {type(built).__name__}, which is not a Decoder",
            keys=(FAMILY_KEY,),
            remedy="a class that inherits from rampcli.models.decoder.Decoder",
        )
    return built


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a norm before it and a residual around it.

    Maps [batch, sequence, hidden] to the same shape.
    """

    tensor_plan: ClassVar[dict[str, str]] = {"attention_norm": "sequence", "ffn_norm": "sequence"}

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(model)
        self.attention = Attention(model)
        self.ffn_norm = build_norm(model)
        self.ffn = FeedForward(model)

    def forward(  # noqa: D102
        self,
        hidden: Tensor,
        rotation: Tensor | None,
        mask: Mask = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation, mask, cache)
        output: Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return output


class FeedForward(nn.Module):
    """Two projections with an activation function between them, which may be gated.

    Maps [batch, sequence, hidden] to the same shape.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        declared = FeedForwardPart(model)
        self.tensor_plan = declared.tensor_plan
        kind, linears = declared.activation, declared.linears
        self.activation = partial(resolve_name(kind.function), **kind.options)
        self.gate = build_linear(linears["gate"]) if kind.is_gated else None
        self.up = build_linear(linears["up"])
        self.output = build_linear(linears["output"])

    def forward(self, hidden: Tensor) -> Tensor:  # noqa: D102
        if self.gate is None:
            inner = self.activation(self.up(hidden))
        else:
            inner = self.activation(self.gate(hidden)) * self.up(hidden)
        output: Tensor = self.output(inner)
        return output
