"""Settings of extensions: declared as a dataclass, typed and explained like those of the schema."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rampcli.config.layers import DEFAULT, Entry, Layer, Precedence, Stack, sources_named
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, Remedy, UsageError, set_to, shown
from rampcli.plugins.extensions import (
    DECAY_STYLE_KEY,
    FAMILY_KEY,
    OBSERVERS_KEY,
    OPTIMIZER_KEY,
    SOURCE_KEY,
    TRACKERS_KEY,
    Extension,
    find,
    names,
)
from rampcli.plugins.trackers import TRACKERS
from rampcli.settings.by_key import extension_of, settings, settings_of
from rampcli.settings.checks import check_range
from rampcli.settings.fields import Extensible
from rampcli.settings.optim import OF_SOME
from rampcli.settings.unknown_keys import how_to_know
from rampcli.words import FOREIGN

CHOOSING = (OPTIMIZER_KEY, DECAY_STYLE_KEY, FAMILY_KEY, SOURCE_KEY, OBSERVERS_KEY, TRACKERS_KEY)
"""Settings that name extensions with settings of their own."""
EXTENSION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def built_in_names(key: str) -> list[str]:
    """Returns the names that a setting accepts without extensions."""
    lists = {TRACKERS_KEY: list(TRACKERS), OBSERVERS_KEY: list[str]()}
    return lists[key] if key in lists else settings()[key].choices


def with_extensions(stack: Stack, report: ErrorReport) -> Stack:
    """Checks that the extensions of a run exist, and adds the defaults of their settings."""
    defaults: dict[str, Entry] = {}
    values = stack.values()
    for key in CHOOSING:
        for name in _chosen(stack, key):
            with report.noting(), sources_named(stack):
                for setting in settings_of(_existing(key, name)):
                    defaults[setting.key] = Entry(setting.default, DEFAULT)
                    value = values.get(setting.key, setting.default)
                    ErrorReport(check_range(setting, value)).close()
    layer = Layer(DEFAULT, Precedence.SCHEMA, defaults)
    for key in values:
        if key not in settings() and key not in FOREIGN and key not in defaults:
            with report.noting(), sources_named(stack):
                raise _unused(key, stack)
    return dataclasses.replace(stack, composed=(layer, *stack.composed)) if defaults else stack


def extension_function(key: str, name: str, section: Extensible) -> Callable[..., Any] | None:
    """Returns the function of an extension, with its settings bound; None for a built-in name.

    Args:
        key: setting that names it, see `rampcli.plugins.extensions`.

    Raises:
        UsageError: there is no such extension here, or a setting of its own is not valid.
    """
    if name in built_in_names(key):
        return None
    extension = _existing(key, name)
    if extension.settings is None:
        return extension.function
    values = section.extensions.get(name, {})
    known = {setting.key: setting for setting in settings_of(extension)}
    own = {field: typed(f"{extension.section}{field}", value) for field, value in values.items()}
    for field, value in own.items():
        ErrorReport(check_range(known[f"{extension.section}{field}"], value)).close()
    return partial(extension.function, settings=extension.settings(**own))


def _chosen(stack: Stack, key: str) -> Iterator[str]:
    value = stack.entry(key).value
    for name in value if isinstance(value, list) else [value]:
        if name not in built_in_names(key):
            yield name


def _existing(key: str, name: str) -> Extension:
    extension = find(key, name) if EXTENSION_NAME.fullmatch(name) else None
    if extension is None:
        raise _unknown(key, name)
    return extension


def _unknown(key: str, name: str) -> UsageError:
    known = [*built_in_names(key), *names(key)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if key in (OBSERVERS_KEY, TRACKERS_KEY):
        message = f"{key}: there is no {key.removeprefix('logging.').removesuffix('s')} {name!r}"
        remedies: list[Remedy] = [set_to(key, [])]
        if known:
            remedies = [f"some of {', '.join(known)}: {set_to(key, known)}"]
    else:
        message = f"{key}={name} is not one of {', '.join(known)}"
        remedies = [set_to(key, [*near, *known][0])]
    if not near:
        remedies.append(how_to_know(name))
    return UsageError(message, keys=(key,), remedy=remedies)


def _unused(key: str, stack: Stack) -> UsageError:
    """Returns the error for a setting of an extension that the run does not use."""
    extension = extension_of(key)
    assert extension is not None
    chooser, name = extension.key, extension.name
    value = stack.entry(chooser).value
    wanted = shown([*value, name]) if isinstance(value, list) else name
    return UsageError(
        f"{key} does not apply to {chooser}={shown(value)}",
        keys=(key, chooser),
        remedy=set_to(chooser, wanted),
    )


def check_declaration(extension: Extension) -> None:
    """Checks the name of an extension, and the dataclass of its settings.

    Raises:
        UsageError: the name is a built-in one or not an identifier, the class is not a dataclass
            whose fields all have defaults and types that settings can have, or the settings that
            an optimiser reads do not exist.
    """
    place = f"{extension.source}: {extension.key}={extension.name}"
    if not EXTENSION_NAME.fullmatch(extension.name) or extension.name in built_in_names(
        extension.key
    ):
        raise UsageError(
            f"{place} cannot be the name of an extension",
            keys=(extension.key,),
            remedy="another name, of letters, digits and _",
        )
    if extension.reads is not None and (
        unknown := [field for field in extension.reads if field not in OF_SOME]
    ):
        raise UsageError(
            f"{place}: reads={shown(unknown)} names no settings of an optimiser",
            keys=(extension.key,),
            remedy=f"some of {', '.join(OF_SOME)}",
        )
    if extension.settings is None:
        return
    if not dataclasses.is_dataclass(extension.settings):
        raise UsageError(
            f"{place}: {extension.settings.__name__} is not a dataclass",
            keys=(extension.key,),
            remedy="@dataclass(kw_only=True, slots=True) above the class",
        )
    for setting in settings_of(extension):
        if setting.default is dataclasses.MISSING or not setting.has_known_type():
            raise UsageError(
                f"{place}: {setting.key} cannot be a setting",
                keys=(extension.key,),
                remedy="a default, and one of the types int, float, bool, str, Literal and lists",
            )
