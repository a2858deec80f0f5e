"""Checks that the optimiser uses the settings that a user gives it, and the factors of its rate."""

import ast
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from textwrap import dedent
from typing import Any

from rampcli import extensions
from rampcli.batch.quantities import counted, listed
from rampcli.batch.ramp import RAMP_KEY, RampSchedule
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Precedence, stack_of
from rampcli.config.optimizers import OPTIMIZERS
from rampcli.config.rl import unit_of
from rampcli.config.schema import Config
from rampcli.config.settings import settings, settings_of
from rampcli.errors import UsageError, set_to, shown
from rampcli.extensions import OPTIMIZER

COUPLING_KEY = "schedule.batch_coupling"
BETA2_KEY = "schedule.beta2_coupling"
DECAY_KEY = "schedule.weight_decay_coupling"
FACTORS_KEY = "schedule.lr_factors"
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-3, 1e3
"""Range of a factor of the learning rate. Values coupled to it stay finite."""
MOST_SHOWN = 5
"""Most batch sizes that an error names."""
MOST_OFFERED = 32
"""Most stages for which a list is offered. A longer list does not fit into a message."""
OF_SOME = dict.fromkeys(field for one in OPTIMIZERS.values() for field in one.settings)
"""Fields of the section `optim` that an optimiser may use or not, in order."""


def check_used(config: Config) -> Iterator[UsageError]:
    """Checks that the optimiser uses the settings that the user has changed.

    A recipe may have settings of another optimiser than the one that the user chooses.
    """
    stack, name = stack_of(config), config.optim.optimizer
    own = extensions.REGISTERED.get((OPTIMIZER, name))
    of_own = set() if own is None else {setting.key for setting in settings_of(own)}
    used = used_settings(name)
    if used is None:
        return
    for field in OF_SOME:
        key, value = f"optim.{field}", getattr(config.optim, field)
        is_changed = value != settings()[key].default
        if field in used or not is_changed or stack.precedence(key) is not Precedence.USER:
            continue
        own_key = f"optim.{name}.{field}"
        others = [other for other, one in OPTIMIZERS.items() if field in one.settings]
        yield UsageError(
            f"{key}={shown(value)} does not apply to {OPTIMIZER}={name}",
            keys=(key, OPTIMIZER),
            remedy=set_to(own_key, value) if own_key in of_own else set_to(OPTIMIZER, *others),
        )


def check_coupled(config: Config) -> Iterator[UsageError]:
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
    return None if own is None else attributes_read(own.function)


def check_factors(config: Config) -> Iterator[UsageError]:
    """Checks that factors of the learning rate are in a sane range, and scale it alone."""
    schedule = config.schedule
    if schedule.lr_factors is None:
        return
    if wrong := [factor for factor in schedule.lr_factors if not _is_sane(factor)]:
        yield UsageError(
            f"{FACTORS_KEY}={shown(schedule.lr_factors)}: the factor {shown(wrong[0])} is not from"
            f" {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g}",
            keys=(FACTORS_KEY,),
            remedy=set_to(FACTORS_KEY, _fitting(schedule.lr_factors)),
        )
    if schedule.batch_coupling != "none":
        yield UsageError(
            f"the learning rate is scaled twice: {FACTORS_KEY}={shown(schedule.lr_factors)} and"
            f" {COUPLING_KEY}={shown(schedule.batch_coupling)}",
            keys=(FACTORS_KEY, COUPLING_KEY),
            remedy=[set_to(FACTORS_KEY, None), set_to(COUPLING_KEY, "none")],
        )


def _is_sane(factor: float) -> bool:
    return SMALLEST_FACTOR <= factor <= LARGEST_FACTOR


def _fitting(factors: Sequence[float]) -> list[float]:
    """Returns factors with 1 in place of those out of range."""
    return [factor if _is_sane(factor) else 1.0 for factor in factors]


def check_number_of_factors(config: Config, ramp: RampSchedule) -> None:
    """Checks that each stage of a schedule has a factor of the learning rate, if any has.

    Raises:
        UsageError: there are more or fewer factors than stages.
    """
    factors, stages = config.schedule.lr_factors, ramp.stages
    if factors is None or len(factors) == len(stages):
        return
    sizes = listed([str(stage.global_batch_size) for stage in stages], most=MOST_SHOWN)
    has_list = config.model.step_batch_size_schedule is not None
    given = _fitting(factors) or [1.0]
    fitting = [*given, *given[-1:] * len(stages)][: len(stages)]
    raise UsageError(
        f"{FACTORS_KEY} lists the factors of {counted(len(factors), 'stage')}, but the schedule of"
        f" the batch has {counted(len(stages), 'stage')}, of {sizes} {unit_of(config)}",
        keys=(FACTORS_KEY, SCHEDULE_KEY if has_list else RAMP_KEY),
        remedy=[
            *([set_to(FACTORS_KEY, fitting)] if len(stages) <= MOST_OFFERED else []),
            set_to(FACTORS_KEY, None),
        ],
    )


def attributes_read(function: Callable[..., Any]) -> set[str] | None:
    """Returns the settings that the function of an optimiser reads from its section `optim`.

    None means that they are unknown: the function passes the section on, for example, or its source
    is not known.
    """
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
        _, section, *_ = inspect.signature(function).parameters
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == section]
    read = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == section
    ]
    is_known = len(named) == len(read) and not any(name.startswith("_") for name in read)
    return set(read) if is_known else None


CHECKS = (check_factors,)
