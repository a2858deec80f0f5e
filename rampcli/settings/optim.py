"""The settings of the optimiser and of the learning rate."""

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from rampcli.batch.quantities import MOST_NAMED, MOST_STAGES_OFFERED, counted, listed
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.errors import UsageError, set_to, shown
from rampcli.plugins import extensions
from rampcli.plugins.extensions import OPTIMIZER_KEY
from rampcli.schedule.couplings import (
    BATCH_COUPLINGS,
    BETA2_COUPLINGS,
    WEIGHT_DECAY_COUPLINGS,
)
from rampcli.schedule.learning_rate import DECAY_STYLES, OF_EXTENSION
from rampcli.settings.by_key import settings, settings_of
from rampcli.settings.facts import (
    COST,
    LEARNING_RATE,
    SAME_STATE,
    SPEED,
    TENSORS,
    UPDATES,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Extensible, Keyed, keyed, setting, settings_class, with_meanings
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.rl import unit_of

OF_SOME = dict.fromkeys(field for one in OPTIMIZERS.values() for field in one.settings)
"""Fields of the section `optim` that an optimiser may use or not, in order."""

if TYPE_CHECKING:
    from rampcli.settings.config import Config


@keyed("optim.")
@settings_class(kw_only=True)
class OptimConfig(Extensible):
    """The optimiser and the learning rate. At most one of the two warm-ups is set."""

    of_extensions: ClassVar = whole_run(UPDATES | COST, SAME_STATE)
    optimizer: Keyed[str] = setting(
        "adamw",
        "Optimiser. `muon`: Muon for the layers' matrices, scaled to AdamW's learning rate, and"
        " AdamW for the rest.",
        whole_run(TENSORS | UPDATES | COST, SAME_STATE),
        choices=OPTIMIZERS,
        extensible=True,
    )
    lr: Keyed[float] = setting(1e-3, "Highest learning rate.", any_phase(LEARNING_RATE), at_least=0)
    min_lr: Keyed[float] = setting(
        0.0, "Learning rate at the end of the decay.", any_phase(LEARNING_RATE), at_least=0
    )
    warmup_samples: Keyed[int | None] = setting(
        None,
        "Length of the linear warm-up in samples. `null`: not set.",
        any_phase(LEARNING_RATE).one_way_of("warm-up"),
        unit="samples",
        at_least=0,
    )
    warmup_steps: Keyed[int | None] = setting(
        None,
        "Length of the linear warm-up in steps; the plan converts it to samples. `null`: not set.",
        any_phase(LEARNING_RATE).one_way_of("warm-up"),
        unit="optimiser steps",
        at_least=0,
    )
    weight_decay: Keyed[float] = setting(
        0.1,
        "Weight decay of matrices and embeddings; other parameters have none.",
        any_phase(UPDATES),
        at_least=0,
    )
    beta1: Keyed[float] = setting(
        0.9, "AdamW's first decay rate.", any_phase(UPDATES), at_least=0, below=1
    )
    beta2: Keyed[float] = setting(
        0.95, "AdamW's second decay rate.", any_phase(UPDATES), at_least=0, below=1
    )
    eps: Keyed[float] = setting(1e-8, "AdamW's epsilon.", any_phase(UPDATES), above=0)
    muon_momentum: Keyed[float] = setting(
        0.95, "Muon's momentum.", any_phase(UPDATES), at_least=0, below=1
    )
    muon_iterations: Keyed[int] = setting(
        5,
        "Newton-Schulz iterations of Muon. Fewer take less time, orthogonalise less exactly and"
        " make smaller steps.",
        whole_run(UPDATES | SPEED, SAME_STATE),
        unit="iterations",
        at_least=1,
        at_most=100,
    )
    skip_step_sigma: Keyed[float | None] = setting(
        None,
        "Skip a step whose loss or gradient norm is more than this many standard deviations above"
        " the mean of the last 128 steps. `null`: skip none.",
        any_phase(UPDATES | SPEED),
        above=0,
    )


@keyed("schedule.")
@settings_class(kw_only=True)
class ScheduleConfig(Extensible):
    """How the learning rate decays over the samples, after a linear warm-up to `optim.lr`."""

    of_extensions: ClassVar = any_phase(LEARNING_RATE)
    decay_style: Keyed[str] = setting(
        "cosine",
        with_meanings("Shape of the decay.", DECAY_STYLES),
        any_phase(LEARNING_RATE),
        choices=DECAY_STYLES,
        extensible=True,
    )
    begin: Keyed[Literal["continue", "restart"] | None] = setting(
        None,
        "How a phase's own schedule begins. `continue`: at the rate at which the phase before it"
        " ended; a warm-up of the phase leads from there to `optim.lr`. `restart`: at `optim.lr`,"
        " or at 0 with a warm-up of the phase. `null`: `restart` if the phase sets `optim.lr`, else"
        " `continue`.",
        any_phase(LEARNING_RATE),
        example="restart",
    )
    wsd_decay_samples: Keyed[int | None] = setting(
        None,
        "Length of the final decay of `wsd`. `null`: the last tenth of the run.",
        any_phase(LEARNING_RATE),
        unit="samples",
        at_least=1,
    )
    batch_coupling: Keyed[str | float] = setting(
        "none",
        with_meanings(
            "How a batch below the largest scales the learning rate, where r is the batch divided"
            " by the largest. A number e: by r to the power of e.",
            BATCH_COUPLINGS,
        ),
        any_phase(UPDATES).replacing(["schedule.lr_factors"]),
        choices=BATCH_COUPLINGS,
        at_least=0,
        at_most=2,
    )
    lr_factors: Keyed[list[float] | None] = setting(
        None,
        "Factor of the learning rate in each stage of the batch schedule, in order, in place of"
        " `schedule.batch_coupling`. `null`: the coupling.",
        any_phase(UPDATES).replacing({"schedule.batch_coupling": "none"}),
        # Values that are coupled to a factor in this range stay finite.
        at_least=1e-3,
        at_most=1000,
    )
    beta2_coupling: Keyed[str] = setting(
        "none",
        with_meanings(
            "How `optim.beta2` follows the batch, where r is the batch divided by the largest.",
            BETA2_COUPLINGS,
        ),
        any_phase(UPDATES),
        choices=BETA2_COUPLINGS,
    )
    weight_decay_coupling: Keyed[str] = setting(
        "none",
        with_meanings(
            "How `optim.weight_decay` follows the batch, where r is the batch divided by the"
            " largest.",
            WEIGHT_DECAY_COUPLINGS,
        ),
        any_phase(UPDATES),
        choices=WEIGHT_DECAY_COUPLINGS,
    )


def check_learning_rate(config: "Config") -> Iterator[UsageError]:
    """Checks that the learning rate has the settings that its schedule needs, and no others."""
    optim, schedule = config.optim, config.schedule
    style = DECAY_STYLES.get(schedule.decay_style, OF_EXTENSION)
    if optim.warmup_samples is not None and optim.warmup_steps is not None:
        yield UsageError(
            f"the warm-up is given twice: optim.warmup_samples={optim.warmup_samples} and"
            f" optim.warmup_steps={optim.warmup_steps}",
            keys=(OptimConfig.warmup_samples, OptimConfig.warmup_steps),
            remedy="null for one of them",
        )
    elif style.needs_warmup and not (optim.warmup_samples or optim.warmup_steps):
        yield UsageError(
            f"schedule.decay_style={schedule.decay_style} needs a warm-up to decay from",
            keys=(ScheduleConfig.decay_style, OptimConfig.warmup_samples, OptimConfig.warmup_steps),
            remedy=set_to(OptimConfig.warmup_samples, 10_000),
        )
    if optim.min_lr > optim.lr:
        yield UsageError(
            f"optim.min_lr={optim.min_lr} is above optim.lr={optim.lr}",
            keys=(OptimConfig.min_lr, OptimConfig.lr),
            remedy=set_to(OptimConfig.min_lr, optim.lr),
        )
    if schedule.wsd_decay_samples is not None and not style.takes_decay_samples:
        yield UsageError(
            f"schedule.wsd_decay_samples={schedule.wsd_decay_samples} does not apply to"
            f" schedule.decay_style={schedule.decay_style}",
            keys=(ScheduleConfig.wsd_decay_samples, ScheduleConfig.decay_style),
            remedy=[
                set_to(ScheduleConfig.decay_style, "wsd"),
                set_to(ScheduleConfig.wsd_decay_samples, None),
            ],
        )


def check_used(config: "Config", is_typed: Callable[[str], bool]) -> Iterator[UsageError]:
    """Checks that the optimiser uses the settings that the user has changed.

    A recipe may have settings of another optimiser than the one that the user chooses.
    """
    name = config.optim.optimizer
    own = extensions.REGISTERED.get((OPTIMIZER_KEY, name))
    of_own = set() if own is None else {setting.key for setting in settings_of(own)}
    used = used_settings(name)
    if used is None:
        return
    for field in OF_SOME:
        key, value = f"optim.{field}", getattr(config.optim, field)
        is_changed = value != settings()[key].default
        if field in used or not is_changed or not is_typed(key):
            continue
        own_key = f"optim.{name}.{field}"
        others = [other for other, one in OPTIMIZERS.items() if field in one.settings]
        yield UsageError(
            f"{key}={shown(value)} does not apply to {OPTIMIZER_KEY}={name}",
            keys=(key, OPTIMIZER_KEY),
            remedy=set_to(own_key, value) if own_key in of_own else set_to(OPTIMIZER_KEY, *others),
        )


def check_couplings(config: "Config", _: Callable[[str], bool]) -> Iterator[UsageError]:
    """Checks that the optimiser uses what follows the batch, as far as that is known."""
    name, schedule = config.optim.optimizer, config.schedule
    used = used_settings(name)
    for key, coupling, field in (
        (ScheduleConfig.beta2_coupling, schedule.beta2_coupling, "beta2"),
        (ScheduleConfig.weight_decay_coupling, schedule.weight_decay_coupling, "weight_decay"),
    ):
        if coupling != "none" and used is not None and field not in used:
            others = [other for other, one in OPTIMIZERS.items() if field in one.settings]
            yield UsageError(
                f"{key}={coupling} does not apply to {OPTIMIZER_KEY}={name}, which does not use"
                f" optim.{field}",
                keys=(key, OPTIMIZER_KEY),
                remedy=[set_to(key, "none"), set_to(OPTIMIZER_KEY, *others)],
            )


def used_settings(optimizer: str) -> Collection[str] | None:
    """Returns the fields of the section `optim` that an optimiser uses, or None if unknown."""
    if optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer].settings
    own = extensions.REGISTERED.get((OPTIMIZER_KEY, optimizer))
    return None if own is None else own.reads


def check_factors(config: "Config", ramp: RampSchedule) -> Iterator[UsageError]:
    """Checks that each stage of a schedule has a sane factor of the learning rate, if any has.

    Factors scale the rate alone. What an error offers fits the stages.
    """
    factors, coupling = config.schedule.lr_factors, config.schedule.batch_coupling
    if factors is None:
        return
    is_sane, stages = settings()[ScheduleConfig.lr_factors].is_in_range, ramp.stages
    given = [factor if is_sane(factor) else 1.0 for factor in factors] or [1.0]
    fitting = [*given, *given[-1:] * len(stages)][: len(stages)]
    offered = (
        [set_to(ScheduleConfig.lr_factors, fitting)] if len(stages) <= MOST_STAGES_OFFERED else []
    )
    without = set_to(ScheduleConfig.lr_factors, None)
    if wrong := [factor for factor in factors if not is_sane(factor)]:
        yield UsageError(
            f"{ScheduleConfig.lr_factors}={shown(factors)}: the factor {shown(wrong[0])} is not"
            f" {settings()[ScheduleConfig.lr_factors].range_name()}",
            keys=(ScheduleConfig.lr_factors,),
            remedy=[*offered, without],
        )
    if len(factors) != len(stages):
        sizes = listed([str(stage.global_batch_size) for stage in stages], most=MOST_NAMED)
        has_list = config.model.step_batch_size_schedule is not None
        yield UsageError(
            f"{ScheduleConfig.lr_factors} lists the factors of {counted(len(factors), 'stage')},"
            " but the schedule"
            f" of the batch has {counted(len(stages), 'stage')}, of {sizes} {unit_of(config)}",
            keys=(ScheduleConfig.lr_factors, SCHEDULE_KEY if has_list else RAMP_KEY),
            remedy=[*offered, without],
        )
    if coupling != "none":
        yield UsageError(
            f"the learning rate is scaled twice: {ScheduleConfig.lr_factors}={shown(factors)} and"
            f" {ScheduleConfig.batch_coupling}={shown(coupling)}",
            keys=(ScheduleConfig.lr_factors, ScheduleConfig.batch_coupling),
            remedy=[without, set_to(ScheduleConfig.batch_coupling, "none")],
        )
