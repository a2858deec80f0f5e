"""Checks that the optimiser uses the settings that a user gives it, and the factors of its rate."""

from collections.abc import Callable, Collection, Iterator

from rampcli.batch.quantities import counted, listed
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.errors import UsageError, set_to, shown
from rampcli.plugins import extensions
from rampcli.plugins.extensions import OPTIMIZER
from rampcli.settings import Config
from rampcli.settings.by_key import settings, settings_of
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.rl import unit_of

COUPLING_KEY = "schedule.batch_coupling"
BETA2_KEY = "schedule.beta2_coupling"
DECAY_KEY = "schedule.weight_decay_coupling"
FACTORS_KEY = "schedule.lr_factors"
MOST_SHOWN = 5
"""Most batch sizes that an error names."""
MOST_OFFERED = 32
"""Most stages for which a list is offered. A longer list does not fit into a message."""
OF_SOME = dict.fromkeys(field for one in OPTIMIZERS.values() for field in one.settings)
"""Fields of the section `optim` that an optimiser may use or not, in order."""


def check_used(config: Config, is_typed: Callable[[str], bool]) -> Iterator[UsageError]:
    """Checks that the optimiser uses the settings that the user has changed.

    A recipe may have settings of another optimiser than the one that the user chooses.
    """
    name = config.optim.optimizer
    own = extensions.REGISTERED.get((OPTIMIZER, name))
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
            f"{key}={shown(value)} does not apply to {OPTIMIZER}={name}",
            keys=(key, OPTIMIZER),
            remedy=set_to(own_key, value) if own_key in of_own else set_to(OPTIMIZER, *others),
        )


def check_coupled(config: Config, _: Callable[[str], bool]) -> Iterator[UsageError]:
    """Checks that the optimiser uses what follows the batch, as far as that is known."""
    name, schedule = config.optim.optimizer, config.schedule
    used = used_settings(name)
    for key, coupling, field in (
        (BETA2_KEY, schedule.beta2_coupling, "beta2"),
        (DECAY_KEY, schedule.weight_decay_coupling, "weight_decay"),
    ):
        if coupling != "none" and used is not None and field not in used:
            others = [other for other, one in OPTIMIZERS.items() if field in one.settings]
            yield UsageError(
                f"{key}={coupling} does not apply to {OPTIMIZER}={name}, which does not use"
                f" optim.{field}",
                keys=(key, OPTIMIZER),
                remedy=[set_to(key, "none"), set_to(OPTIMIZER, *others)],
            )


def used_settings(optimizer: str) -> Collection[str] | None:
    """Returns the fields of the section `optim` that an optimiser uses, or None if unknown."""
    if optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer].settings
    own = extensions.REGISTERED.get((OPTIMIZER, optimizer))
    return None if own is None else own.reads


def check_factors(config: Config, ramp: RampSchedule) -> Iterator[UsageError]:
    """Checks that each stage of a schedule has a sane factor of the learning rate, if any has.

    Factors scale the rate alone. What an error offers fits the stages.
    """
    factors, coupling = config.schedule.lr_factors, config.schedule.batch_coupling
    if factors is None:
        return
    is_sane, stages = settings()[FACTORS_KEY].is_in_range, ramp.stages
    given = [factor if is_sane(factor) else 1.0 for factor in factors] or [1.0]
    fitting = [*given, *given[-1:] * len(stages)][: len(stages)]
    offered = [set_to(FACTORS_KEY, fitting)] if len(stages) <= MOST_OFFERED else []
    without = set_to(FACTORS_KEY, None)
    if wrong := [factor for factor in factors if not is_sane(factor)]:
        yield UsageError(
            f"{FACTORS_KEY}={shown(factors)}: the factor {shown(wrong[0])} is not"
            f" {settings()[FACTORS_KEY].range_name()}",
            keys=(FACTORS_KEY,),
            remedy=[*offered, without],
        )
    if len(factors) != len(stages):
        sizes = listed([str(stage.global_batch_size) for stage in stages], most=MOST_SHOWN)
        has_list = config.model.step_batch_size_schedule is not None
        yield UsageError(
            f"{FACTORS_KEY} lists the factors of {counted(len(factors), 'stage')}, but the schedule"
            f" of the batch has {counted(len(stages), 'stage')}, of {sizes} {unit_of(config)}",
            keys=(FACTORS_KEY, SCHEDULE_KEY if has_list else RAMP_KEY),
            remedy=[*offered, without],
        )
    if coupling != "none":
        yield UsageError(
            f"the learning rate is scaled twice: {FACTORS_KEY}={shown(factors)} and"
            f" {COUPLING_KEY}={shown(coupling)}",
            keys=(FACTORS_KEY, COUPLING_KEY),
            remedy=[without, set_to(COUPLING_KEY, "none")],
        )
