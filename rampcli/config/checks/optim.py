"""Checks that the optimiser uses the settings that a user gives it."""

import ast
import inspect
from collections.abc import Callable, Collection, Iterator
from textwrap import dedent
from typing import Any

from rampcli import extensions
from rampcli.config.layers import Precedence, stack_of
from rampcli.config.optimizers import OPTIMIZERS
from rampcli.config.schema import Config
from rampcli.config.settings import settings, settings_of
from rampcli.errors import UsageError, set_to, shown
from rampcli.extensions import OPTIMIZER

OF_SOME = dict.fromkeys(field for one in OPTIMIZERS.values() for field in one.settings)
"""Fields of the section `optim` that an optimiser may use or not, in order."""


def check_used(config: Config) -> Iterator[UsageError]:
    """Checks that the optimiser uses the settings that the user has changed.

    A recipe may have settings of another optimiser than the one that the user chooses.
    """
    stack, name = stack_of(config), config.optim.optimizer
    own = extensions.REGISTERED.get((OPTIMIZER, name))
    of_own = set() if own is None else {setting.key for setting in settings_of(own)}
    used: Collection[str] | None = None
    if name in OPTIMIZERS:
        used = OPTIMIZERS[name].settings
    elif own is not None:
        used = attributes_read(own.function)
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
