"""Checks the shape of the model."""

from rampcli.batch.division import divisors
from rampcli.config.model_parts import POSITION_EMBEDDINGS
from rampcli.config.schema import Config
from rampcli.errors import UsageError, set_to, set_together


def check_heads(config: Config) -> None:
    """Checks that heads divide the width and groups the heads, and RoPE's head size is even."""
    model = config.model
    groups = model.key_heads
    if model.head_size is None and model.hidden_size % model.num_attention_heads:
        heads = divisors(model.hidden_size, most=model.num_attention_heads)[-1]
        raise UsageError(
            f"model.hidden_size={model.hidden_size} does not divide into"
            f" model.num_attention_heads={model.num_attention_heads}",
            keys=("model.hidden_size", "model.num_attention_heads"),
            remedy=[set_to("model.num_attention_heads", heads), set_to("model.head_size", 64)],
        )
    if model.num_attention_heads % groups:
        raise UsageError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide into"
            f" model.num_query_groups={groups}",
            keys=("model.num_attention_heads", "model.num_query_groups"),
            remedy=set_to(
                "model.num_query_groups", divisors(model.num_attention_heads, most=groups)[-1]
            ),
        )
    head_size = model.head_width
    if POSITION_EMBEDDINGS[model.position_embedding].is_rotary and head_size % 2:
        other = next(name for name, one in POSITION_EMBEDDINGS.items() if not one.is_rotary)
        raise UsageError(
            f"model.hidden_size={model.hidden_size} over"
            f" model.num_attention_heads={model.num_attention_heads} gives heads of {head_size};"
            " rotary positions need an even size"
            if model.head_size is None
            else f"model.head_size={head_size}: rotary positions need an even size",
            keys=("model.hidden_size", "model.num_attention_heads")
            if model.head_size is None
            else ("model.head_size",),
            remedy=[set_to("model.position_embedding", other), "an even head size"],
        )


def check_rotary(config: Config) -> None:
    """Checks that RoPE scaling has RoPE to scale, and a band of frequencies to blend."""
    model = config.model
    if model.rotary_scale_factor is None:
        return
    if not POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        raise UsageError(
            f"model.rotary_scale_factor={model.rotary_scale_factor:g} does not apply to"
            f" model.position_embedding={model.position_embedding}",
            keys=("model.rotary_scale_factor", "model.position_embedding"),
            remedy=set_to("model.rotary_scale_factor", None),
        )
    if model.rotary_low_freq_factor >= model.rotary_high_freq_factor:
        raise UsageError(
            f"model.rotary_low_freq_factor={model.rotary_low_freq_factor:g} is not below"
            f" model.rotary_high_freq_factor={model.rotary_high_freq_factor:g}",
            keys=("model.rotary_low_freq_factor", "model.rotary_high_freq_factor"),
            remedy=set_together(
                {"model.rotary_low_freq_factor": 1.0, "model.rotary_high_freq_factor": 4.0}
            ),
        )
