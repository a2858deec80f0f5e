"""Checks the learning rate over the run."""

from rampcli.config.schema import Config
from rampcli.errors import UsageError, set_to
from rampcli.schedule.learning_rate import DECAY_STYLES, OF_EXTENSION


def check_warmup(config: Config) -> None:
    """Checks that the warm-up is given once."""
    optim = config.optim
    if optim.warmup_samples is not None and optim.warmup_steps is not None:
        raise UsageError(
            f"the warm-up is given twice: optim.warmup_samples={optim.warmup_samples} and"
            f" optim.warmup_steps={optim.warmup_steps}",
            keys=("optim.warmup_samples", "optim.warmup_steps"),
            remedy="null for one of them",
        )


def check_schedule(config: Config) -> None:
    """Checks that the learning-rate schedule has the settings that it needs, and no others."""
    optim, schedule = config.optim, config.schedule
    if optim.min_lr > optim.lr:
        raise UsageError(
            f"optim.min_lr={optim.min_lr} is above optim.lr={optim.lr}",
            keys=("optim.min_lr", "optim.lr"),
            remedy=set_to("optim.min_lr", optim.lr),
        )
    style = DECAY_STYLES.get(schedule.decay_style, OF_EXTENSION)
    if style.needs_warmup and not (optim.warmup_samples or optim.warmup_steps):
        raise UsageError(
            f"schedule.decay_style={schedule.decay_style} needs a warm-up to decay from",
            keys=("schedule.decay_style", "optim.warmup_samples", "optim.warmup_steps"),
            remedy=set_to("optim.warmup_samples", 10_000),
        )
    if schedule.wsd_decay_samples is not None and not style.takes_decay_samples:
        raise UsageError(
            f"schedule.wsd_decay_samples={schedule.wsd_decay_samples} does not apply to"
            f" schedule.decay_style={schedule.decay_style}",
            keys=("schedule.wsd_decay_samples", "schedule.decay_style"),
            remedy=[
                set_to("schedule.decay_style", "wsd"),
                set_to("schedule.wsd_decay_samples", None),
            ],
        )
