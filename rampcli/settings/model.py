"""Settings of the model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from rampcli.batch.division import divisors
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.errors import UsageError, set_to, set_together
from rampcli.settings.facts import BATCH, COST, NOTHING, SAME_TENSORS, TENSORS, any_phase, whole_run
from rampcli.settings.fields import Extensible, Keyed, keyed, setting, settings_class
from rampcli.settings.model_parts import ACTIVATIONS, NORMS, POSITION_EMBEDDINGS
from rampcli.words import RAMP_SETTINGS

if TYPE_CHECKING:
    from rampcli.settings.config import Config


MOST_WIDTH = 1_000_000
MOST_VOCABULARY = 100_000_000
"""Limits above any real model, so that a wrong number is refused before anything is allocated."""
_SHAPE = whole_run(TENSORS | COST, SAME_TENSORS)
_RAMPS = (RAMP_KEY, SCHEDULE_KEY, *RAMP_SETTINGS)
"""A ramp of the run counts from its first sample, and says nothing about a phase's own batch."""


@keyed("model.")
@settings_class(kw_only=True)
class ModelConfig(Extensible):
    """The decoder's shape, and the batch that it is trained with."""

    of_extensions: ClassVar = whole_run(TENSORS | COST, SAME_TENSORS)
    family: Keyed[str] = setting(
        "decoder",
        "Architecture. `decoder`: the transformer that the settings below describe.",
        _SHAPE,
        choices=("decoder",),
        extensible=True,
    )
    num_layers: Keyed[int] = setting(6, "Number of layers.", _SHAPE, at_least=1, at_most=10_000)
    hidden_size: Keyed[int] = setting(
        128, "Width of the residual stream.", _SHAPE, at_least=1, at_most=MOST_WIDTH
    )
    ffn_hidden_size: Keyed[int] = setting(
        344, "Inner width of the feed-forward layers.", _SHAPE, at_least=1, at_most=MOST_WIDTH
    )
    num_attention_heads: Keyed[int] = setting(
        4, "Number of query heads.", _SHAPE, at_least=1, at_most=MOST_WIDTH
    )
    head_size: Keyed[int | None] = setting(
        None,
        "Width of an attention head. `null`: `hidden_size` divided by `num_attention_heads`.",
        _SHAPE,
        at_least=1,
        at_most=MOST_WIDTH,
    )
    num_query_groups: Keyed[int | None] = setting(
        None,
        "Number of key and value heads; must divide `num_attention_heads`. `null`: one per query"
        " head.",
        _SHAPE,
        at_least=1,
    )
    vocab_size: Keyed[int | None] = setting(
        256,
        "Size of the vocabulary. `null`: that of the tokenizer, from 1,024 tokens on padded to a"
        " multiple of 128 x `parallel.tensor_parallel_size`.",
        _SHAPE,
        at_least=1,
        at_most=MOST_VOCABULARY,
    )
    normalization: Keyed[str] = setting(
        "rmsnorm",
        "Normalisation before attention, before the feed-forward layer and after the last layer.",
        _SHAPE,
        choices=NORMS,
    )
    norm_epsilon: Keyed[float] = setting(
        1e-5, "Epsilon of the normalisation.", whole_run(TENSORS, SAME_TENSORS), above=0
    )
    activation: Keyed[str] = setting(
        "swiglu", "Activation function of the feed-forward layers.", _SHAPE, choices=ACTIVATIONS
    )
    position_embedding: Keyed[str] = setting(
        "rope",
        "How positions are encoded. `rope` needs an even head size.",
        _SHAPE,
        choices=POSITION_EMBEDDINGS,
    )
    rotary_base: Keyed[float] = setting(
        10_000.0, "Base frequency of RoPE.", any_phase(TENSORS), above=0
    )
    rotary_scale_factor: Keyed[float | None] = setting(
        None,
        "Factor by which RoPE scaling slows low frequencies (Llama 3.1). `null`: no scaling.",
        any_phase(TENSORS),
        at_least=1,
    )
    rotary_low_freq_factor: Keyed[float] = setting(
        1.0, "Low-frequency factor of RoPE scaling (Llama 3.1).", any_phase(TENSORS), above=0
    )
    rotary_high_freq_factor: Keyed[float] = setting(
        4.0, "High-frequency factor of RoPE scaling (Llama 3.1).", any_phase(TENSORS), above=0
    )
    rotary_original_length: Keyed[int] = setting(
        8192,
        "Context length before RoPE scaling (Llama 3.1).",
        any_phase(TENSORS),
        unit="tokens",
        at_least=1,
    )
    qk_norm: Keyed[bool] = setting(
        False, "Normalise each head's queries and keys with RMSNorm (Qwen3).", _SHAPE
    )
    sliding_window: Keyed[int | None] = setting(
        None,
        "Number of most recent tokens that a token attends to, including itself (Mistral)."
        " `null`: all earlier tokens.",
        any_phase(TENSORS | COST),
        unit="tokens",
        at_least=1,
    )
    bias: Keyed[bool] = setting(False, "Add biases to the linear layers.", _SHAPE)
    tie_embeddings: Keyed[bool] = setting(
        False, "Use the token embedding as the output projection.", _SHAPE
    )
    init_std: Keyed[float] = setting(
        0.02,
        "Standard deviation of the initial weights.",
        whole_run(TENSORS, SAME_TENSORS),
        above=0,
    )
    huggingface_type: Keyed[Literal["llama", "mistral"] | None] = setting(
        None,
        "Class of transformers that `rampcli export` writes for a model that both compute. `null`:"
        " Llama's where it can, else the one that can.",
        whole_run(NOTHING, SAME_TENSORS),
    )
    init_from: Keyed[str | None] = setting(
        None,
        "Where the initial weights are: a Hugging Face folder, a model of the hub as `NAME@COMMIT`,"
        " or the directory of a run, whose newest checkpoint is read. `null`: random weights.",
        whole_run(TENSORS, SAME_TENSORS),
    )
    global_batch_size: Keyed[int | None] = setting(
        None,
        "Samples per optimiser step, at the end of a ramp. `null`: derived.",
        any_phase(BATCH).replacing(_RAMPS),
        unit="samples",
        at_least=1,
    )
    rampup_batch_size: Keyed[list[int] | None] = setting(
        None,
        "Batch-size ramp, `[start, increment, samples]`. `null`: no ramp.",
        any_phase(BATCH).one_way_of("ramp").replacing(_RAMPS),
        unit="samples",
        example=[256, 128, 50_000_000],
    )
    step_batch_size_schedule: Keyed[str | None] = setting(
        None,
        "Batch sizes from given points on, `'0:768 250B:1536'`. The points count tokens, or samples"
        " with `samples:` in front, or optimiser steps with `steps:`. `null`: no schedule.",
        any_phase(BATCH).one_way_of("ramp").replacing(_RAMPS),
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


def check_heads(config: "Config") -> Iterator[UsageError]:
    """Checks that heads divide the width and groups the heads, and RoPE's head size is even."""
    model = config.model
    groups = model.key_heads
    if model.head_size is None and model.hidden_size % model.num_attention_heads:
        counts = divisors(model.hidden_size, most=model.num_attention_heads)
        heads = [count for count in counts if count % groups == 0] or counts
        keeps_groups = model.num_attention_heads % groups == 0
        yield UsageError(
            f"model.hidden_size={model.hidden_size} does not divide into"
            f" model.num_attention_heads={model.num_attention_heads}",
            keys=(ModelConfig.hidden_size, ModelConfig.num_attention_heads),
            remedy=[
                set_to(ModelConfig.num_attention_heads, heads[-1]),
                *([set_to(ModelConfig.head_size, 64)] if keeps_groups else []),
            ],
        )
    elif model.num_attention_heads % groups:
        yield UsageError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide into"
            f" model.num_query_groups={groups}",
            keys=(ModelConfig.num_attention_heads, ModelConfig.num_query_groups),
            remedy=set_to(
                ModelConfig.num_query_groups, divisors(model.num_attention_heads, most=groups)[-1]
            ),
        )
    elif POSITION_EMBEDDINGS[model.position_embedding].is_rotary and model.head_width % 2:
        head_size = model.head_width
        other = next(name for name, one in POSITION_EMBEDDINGS.items() if not one.is_rotary)
        yield UsageError(
            f"model.hidden_size={model.hidden_size} over"
            f" model.num_attention_heads={model.num_attention_heads} gives heads of {head_size};"
            " rotary positions need an even size"
            if model.head_size is None
            else f"model.head_size={head_size}: rotary positions need an even size",
            keys=(ModelConfig.hidden_size, ModelConfig.num_attention_heads)
            if model.head_size is None
            else (ModelConfig.head_size,),
            remedy=[set_to(ModelConfig.position_embedding, other), "an even head size"],
        )


def check_rotary(config: "Config") -> Iterator[UsageError]:
    """Checks that RoPE scaling has RoPE to scale, and a band of frequencies to blend."""
    model = config.model
    if model.rotary_scale_factor is None:
        return
    if not POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        yield UsageError(
            f"model.rotary_scale_factor={model.rotary_scale_factor:g} does not apply to"
            f" model.position_embedding={model.position_embedding}",
            keys=(ModelConfig.rotary_scale_factor, ModelConfig.position_embedding),
            remedy=set_to(ModelConfig.rotary_scale_factor, None),
        )
    elif model.rotary_low_freq_factor >= model.rotary_high_freq_factor:
        yield UsageError(
            f"model.rotary_low_freq_factor={model.rotary_low_freq_factor:g} is not below"
            f" model.rotary_high_freq_factor={model.rotary_high_freq_factor:g}",
            keys=(ModelConfig.rotary_low_freq_factor, ModelConfig.rotary_high_freq_factor),
            remedy=set_together(
                {ModelConfig.rotary_low_freq_factor: 1.0, ModelConfig.rotary_high_freq_factor: 4.0}
            ),
        )
