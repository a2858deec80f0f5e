"""Checks the shape of the model, and its learning rate over the run."""

from collections.abc import Iterator

from rampcli.batch.division import divisors
from rampcli.errors import UsageError, set_to, set_together
from rampcli.schedule.learning_rate import DECAY_STYLES, OF_EXTENSION
from rampcli.settings import Config
from rampcli.settings.architectures import misfit_of
from rampcli.settings.model_parts import POSITION_EMBEDDINGS


def check_heads(config: Config) -> Iterator[UsageError]:
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
            keys=("model.hidden_size", "model.num_attention_heads"),
            remedy=[
                set_to("model.num_attention_heads", heads[-1]),
                *([set_to("model.head_size", 64)] if keeps_groups else []),
            ],
        )
    elif model.num_attention_heads % groups:
        yield UsageError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide into"
            f" model.num_query_groups={groups}",
            keys=("model.num_attention_heads", "model.num_query_groups"),
            remedy=set_to(
                "model.num_query_groups", divisors(model.num_attention_heads, most=groups)[-1]
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
            keys=("model.hidden_size", "model.num_attention_heads")
            if model.head_size is None
            else ("model.head_size",),
            remedy=[set_to("model.position_embedding", other), "an even head size"],
        )


def check_rotary(config: Config) -> Iterator[UsageError]:
    """Checks that RoPE scaling has RoPE to scale, and a band of frequencies to blend."""
    model = config.model
    if model.rotary_scale_factor is None:
        return
    if not POSITION_EMBEDDINGS[model.position_embedding].is_rotary:
        yield UsageError(
            f"model.rotary_scale_factor={model.rotary_scale_factor:g} does not apply to"
            f" model.position_embedding={model.position_embedding}",
            keys=("model.rotary_scale_factor", "model.position_embedding"),
            remedy=set_to("model.rotary_scale_factor", None),
        )
    elif model.rotary_low_freq_factor >= model.rotary_high_freq_factor:
        yield UsageError(
            f"model.rotary_low_freq_factor={model.rotary_low_freq_factor:g} is not below"
            f" model.rotary_high_freq_factor={model.rotary_high_freq_factor:g}",
            keys=("model.rotary_low_freq_factor", "model.rotary_high_freq_factor"),
            remedy=set_together(
                {"model.rotary_low_freq_factor": 1.0, "model.rotary_high_freq_factor": 4.0}
            ),
        )


def check_huggingface_type(config: Config) -> Iterator[UsageError]:
    """Checks that the class which a run is to be exported as computes its model."""
    if config.model.huggingface_type is not None and (error := misfit_of(config.model)):
        yield error


def check_learning_rate(config: Config) -> Iterator[UsageError]:
    """Checks that the learning rate has the settings that its schedule needs, and no others."""
    optim, schedule = config.optim, config.schedule
    style = DECAY_STYLES.get(schedule.decay_style, OF_EXTENSION)
    if optim.warmup_samples is not None and optim.warmup_steps is not None:
        yield UsageError(
            f"the warm-up is given twice: optim.warmup_samples={optim.warmup_samples} and"
            f" optim.warmup_steps={optim.warmup_steps}",
            keys=("optim.warmup_samples", "optim.warmup_steps"),
            remedy="null for one of them",
        )
    elif style.needs_warmup and not (optim.warmup_samples or optim.warmup_steps):
        yield UsageError(
            f"schedule.decay_style={schedule.decay_style} needs a warm-up to decay from",
            keys=("schedule.decay_style", "optim.warmup_samples", "optim.warmup_steps"),
            remedy=set_to("optim.warmup_samples", 10_000),
        )
    if optim.min_lr > optim.lr:
        yield UsageError(
            f"optim.min_lr={optim.min_lr} is above optim.lr={optim.lr}",
            keys=("optim.min_lr", "optim.lr"),
            remedy=set_to("optim.min_lr", optim.lr),
        )
    if schedule.wsd_decay_samples is not None and not style.takes_decay_samples:
        yield UsageError(
            f"schedule.wsd_decay_samples={schedule.wsd_decay_samples} does not apply to"
            f" schedule.decay_style={schedule.decay_style}",
            keys=("schedule.wsd_decay_samples", "schedule.decay_style"),
            remedy=[
                set_to("schedule.decay_style", "wsd"),
                set_to("schedule.wsd_decay_samples", None),
            ],
        )


CHECKS = (check_heads, check_rotary, check_huggingface_type, check_learning_rate)
