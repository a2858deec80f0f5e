"""Settings of the model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rampcli.settings.facts import BATCH, COST, NOTHING, SAME_TENSORS, TENSORS, any_phase, whole_run
from rampcli.settings.fields import Extensible, setting
from rampcli.settings.model_parts import ACTIVATIONS, NORMS, POSITION_EMBEDDINGS

MOST_WIDTH = 1_000_000
MOST_VOCABULARY = 100_000_000
"""Limits above any real model, so that a wrong number is refused before anything is allocated."""


@dataclass(kw_only=True, slots=True)
class ModelConfig(Extensible):
    """The decoder's shape, and the batch that it is trained with."""

    of_extensions: ClassVar = whole_run(TENSORS | COST, SAME_TENSORS)
    family: str = setting(
        "decoder",
        "Architecture. `decoder`: the transformer that the settings below describe.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        choices=("decoder",),
        extensible=True,
    )
    num_layers: int = setting(
        6, "Number of layers.", whole_run(TENSORS | COST, SAME_TENSORS), at_least=1, at_most=10_000
    )
    hidden_size: int = setting(
        128,
        "Width of the residual stream.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
        at_most=MOST_WIDTH,
    )
    ffn_hidden_size: int = setting(
        344,
        "Inner width of the feed-forward layers.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
        at_most=MOST_WIDTH,
    )
    num_attention_heads: int = setting(
        4,
        "Number of query heads.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
        at_most=MOST_WIDTH,
    )
    head_size: int | None = setting(
        None,
        "Width of an attention head. `null`: `hidden_size` divided by `num_attention_heads`.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
        at_most=MOST_WIDTH,
    )
    num_query_groups: int | None = setting(
        None,
        "Number of key and value heads; must divide `num_attention_heads`. `null`: one per query"
        " head.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
    )
    vocab_size: int | None = setting(
        256,
        "Size of the vocabulary. `null`: that of the tokenizer, from 1,024 tokens on padded to a"
        " multiple of 128 x `parallel.tensor_parallel_size`.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        at_least=1,
        at_most=MOST_VOCABULARY,
    )
    normalization: str = setting(
        "rmsnorm",
        "Normalisation before attention, before the feed-forward layer and after the last layer.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        choices=NORMS,
    )
    norm_epsilon: float = setting(
        1e-5, "Epsilon of the normalisation.", whole_run(TENSORS, SAME_TENSORS), above=0
    )
    activation: str = setting(
        "swiglu",
        "Activation function of the feed-forward layers.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        choices=ACTIVATIONS,
    )
    position_embedding: str = setting(
        "rope",
        "How positions are encoded. `rope` needs an even head size.",
        whole_run(TENSORS | COST, SAME_TENSORS),
        choices=POSITION_EMBEDDINGS,
    )
    rotary_base: float = setting(10_000.0, "Base frequency of RoPE.", any_phase(TENSORS), above=0)
    rotary_scale_factor: float | None = setting(
        None,
        "Factor by which RoPE scaling slows low frequencies (Llama 3.1). `null`: no scaling.",
        any_phase(TENSORS),
        at_least=1,
    )
    rotary_low_freq_factor: float = setting(
        1.0, "Low-frequency factor of RoPE scaling (Llama 3.1).", any_phase(TENSORS), above=0
    )
    rotary_high_freq_factor: float = setting(
        4.0, "High-frequency factor of RoPE scaling (Llama 3.1).", any_phase(TENSORS), above=0
    )
    rotary_original_length: int = setting(
        8192,
        "Context length before RoPE scaling (Llama 3.1).",
        any_phase(TENSORS),
        unit="tokens",
        at_least=1,
    )
    qk_norm: bool = setting(
        False,
        "Normalise each head's queries and keys with RMSNorm (Qwen3).",
        whole_run(TENSORS | COST, SAME_TENSORS),
    )
    sliding_window: int | None = setting(
        None,
        "Number of most recent tokens that a token attends to, including itself (Mistral)."
        " `null`: all earlier tokens.",
        any_phase(TENSORS | COST),
        unit="tokens",
        at_least=1,
    )
    bias: bool = setting(
        False, "Add biases to the linear layers.", whole_run(TENSORS | COST, SAME_TENSORS)
    )
    tie_embeddings: bool = setting(
        False,
        "Use the token embedding as the output projection.",
        whole_run(TENSORS | COST, SAME_TENSORS),
    )
    init_std: float = setting(
        0.02,
        "Standard deviation of the initial weights.",
        whole_run(TENSORS, SAME_TENSORS),
        above=0,
    )
    huggingface_type: Literal["llama", "mistral"] | None = setting(
        None,
        "Class of transformers that `rampcli export` writes for a model that both compute. `null`:"
        " Llama's where it can, else the one that can.",
        whole_run(NOTHING, SAME_TENSORS),
    )
    init_from: str | None = setting(
        None,
        "Where the initial weights are: a Hugging Face folder, a model of the hub as `NAME@COMMIT`,"
        " or the directory of a run, whose newest checkpoint is read. `null`: random weights.",
        whole_run(TENSORS, SAME_TENSORS),
    )
    global_batch_size: int | None = setting(
        None,
        "Samples per optimiser step, at the end of a ramp. `null`: derived.",
        any_phase(BATCH),
        unit="samples",
        at_least=1,
    )
    rampup_batch_size: list[int] | None = setting(
        None,
        "Batch-size ramp, `[start, increment, samples]`. `null`: no ramp.",
        any_phase(BATCH),
        unit="samples",
        example=[256, 128, 50_000_000],
    )
    step_batch_size_schedule: str | None = setting(
        None,
        "Batch sizes from given points on, `'0:768 250B:1536'`. The points count tokens, or samples"
        " with `samples:` in front, or optimiser steps with `steps:`. `null`: no schedule.",
        any_phase(BATCH),
        unit="tokens, samples or steps : samples",
        example="0:768 250B:1536",
    )

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def key_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary, which is known before a run starts."""
        assert self.vocab_size is not None
        return self.vocab_size
