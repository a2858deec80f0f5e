"""Keys of phases: `phases.NAME.KEY` sets KEY in one phase, and `phases.NAME.until` ends it."""

from collections.abc import Container, Iterable

from rampcli.errors import UsageError
from rampcli.words import SPELLINGS, maxtext

PHASES, UNTIL = "phases", "until"
MAY_CHANGE = (
    *("data.path", "data.blend", "data.split", "data.sequence_length", "data.micro_batch_size"),
    *("data.validation_path", "data.validation", "data.pad_last_window"),
    *("data.eod_mask_loss", "data.document_mask", "data.expansion_factor_real_data"),
    *("model.global_batch_size", "model.rampup_batch_size", "model.step_batch_size_schedule"),
    *("model.rotary_base", "model.rotary_scale_factor", "model.rotary_low_freq_factor"),
    *("model.rotary_high_freq_factor", "model.rotary_original_length", "model.sliding_window"),
    *("optim.lr", "optim.min_lr", "optim.warmup_samples", "optim.warmup_steps"),
    *("optim.weight_decay", "optim.beta1", "optim.beta2", "optim.eps", "optim.muon_momentum"),
    *("optim.skip_step_sigma", "schedule.", "parallel.", "throughput.", "loss."),
    *("rampup.node_policy", "rampup.nodes", "rampup.micro_batch", "rampup.efficiency"),
    *("rampup.semantics", "rampup.decrease_batch_size_if_needed"),
    *("trainer.num_nodes", "trainer.accumulate_grad_batches", "trainer.accumulate_reduce"),
    *("trainer.activation_checkpointing", "trainer.compile", "trainer.gradient_clip_val"),
    *("trainer.val_every_steps", "trainer.val_samples", "trainer.max_val_samples"),
    *("checkpoint.every_steps", "noise_scale.every_steps"),
)
"""Settings, and sections that end with a dot, that a phase may set."""


def phase_key(name: str, key: str) -> str:
    """Returns the key that sets `key` in a phase."""
    return f"{PHASES}.{name}.{key}"


def split_phase_key(key: str) -> tuple[str, str] | None:
    """Returns the phase that a key names, and the key in it; None for a setting of the run."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    is_inside = section == PHASES and name.isidentifier() and inner
    return (name, inner) if is_inside and inner.partition(".")[0] != PHASES else None


def is_phase(key: str) -> bool:
    """Returns whether a key is a phase itself, `phases.NAME`, or all of them, `phases`.

    Only null can be set there. It drops what the layers below say about the phase.
    """
    section, dot, name = key.partition(".")
    return section == PHASES and (not dot or name.isidentifier())


def is_dropped(key: str, by: Iterable[str]) -> bool:
    """Returns whether one of some keys is the phase that a key is about, or all phases."""
    return any(key.startswith(f"{one}.") for one in by if is_phase(one))


def key_inside(key: str) -> str:
    """Returns the key that a key of a phase sets in it, or the same key outside phases."""
    parts = split_phase_key(key)
    return key if parts is None else parts[1]


def checked_name(name: object, earlier: Container[str], *, place: str) -> str:
    """Returns the name of a phase in a list.

    Args:
        name: None if the phase has none.
        earlier: names of the phases before it.
        place: of the phase in the list, to follow `phases` in a message.

    Raises:
        UsageError: the name is not an identifier, or an earlier phase has it.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(
            f"{PHASES}{place}: each phase is a mapping with a name of letters, digits and _",
            keys=(PHASES,),
            remedy='{"name": "main", "until": "7.5T", "data.sequence_length": 4096}',
        )
    if name in earlier:
        raise UsageError(
            f"{PHASES}{place}: there are two phases with the name {name}",
            keys=(PHASES,),
            remedy="a name for each phase",
        )
    return name


def may_change(key: str) -> bool:
    """Returns whether a phase may set a key."""
    ours = SPELLINGS.get(key, key)
    section = f"{ours.partition('.')[0]}."
    return ours in MAY_CHANGE or section in MAY_CHANGE or ours in maxtext.WORDS
