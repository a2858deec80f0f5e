"""The part of a micro batch on one rank, and the bytes of its attention mask. Needs no torch."""

from dataclasses import dataclass
from typing import Literal

from rampcli.settings.model import ModelConfig

SMALLEST_FLEX_HEAD = 16
"""Smallest size of heads for torch's flex attention on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchPart:
    """The part of a micro batch that a rank computes on.

    Attributes:
        context: context-parallel ranks that share each sequence.
        tensor: tensor-parallel ranks. Between layers they share the tokens.
        device: `cpu` or `cuda`, which have different kernels.
        has_documents: whether tokens attend to their own document only.
    """

    samples: int
    sequence: int
    context: int = 1
    tensor: int = 1
    device: Literal["cpu", "cuda"]
    number_bytes: int
    has_documents: bool = False

    @property
    def queries(self) -> int:
        """Tokens of each sequence on this rank."""
        return self.sequence // self.context

    @property
    def tokens(self) -> int:
        """Tokens in attention and feed-forward layers."""
        return self.samples * self.queries

    @property
    def seen(self) -> int:
        """Tokens that attention sees, summed over this rank's pieces of a sequence.

        A context-parallel rank has two. Together they see all tokens and a piece more.
        """
        return self.sequence + (self.sequence // (2 * self.context) if self.context > 1 else 0)

    def hidden_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states between layers."""
        return self.tokens // self.tensor * model.hidden_size * self.number_bytes

    def gathered_bytes(self, model: ModelConfig) -> int:
        """Returns the bytes of the hidden states of the tokens of all tensor-parallel ranks."""
        return self.tokens * model.hidden_size * self.number_bytes


def is_masked(model: ModelConfig, batch: MicroBatchPart) -> bool:
    """Returns whether attention is more than causal (`rampcli.models.masks.build_mask`)."""
    return batch.has_documents or (
        model.sliding_window is not None and model.sliding_window < batch.sequence
    )


def mask_bytes(model: ModelConfig, batch: MicroBatchPart) -> int:
    """Returns the bytes of the mask of a forward pass, or 0 if it has no number for each pair.

    A GPU needs such a mask if flex attention cannot compute heads of this size.
    """
    has_flex_attention = batch.device == "cpu" or model.head_width >= SMALLEST_FLEX_HEAD
    return 0 if has_flex_attention else dense_mask_bytes(model, batch)


def dense_mask_bytes(model: ModelConfig, batch: MicroBatchPart) -> int:
    """Returns the bytes of a mask that has a number for each pair of tokens.

    Returns 0 if attention is causal, so that no device needs one.
    """
    if not is_masked(model, batch):
        return 0
    rows = batch.queries // (2 if batch.context > 1 else 1)
    return rows * batch.seen * batch.number_bytes * (batch.samples if batch.has_documents else 1)
