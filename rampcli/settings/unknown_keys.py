"""Errors for keys that cannot be set: they offer settings that mean the same or look alike."""

import difflib
import re
from collections.abc import Callable, Collection, Sequence

from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.errors import Assignments, Remedy, UsageError, set_to
from rampcli.plugins.extensions import EXTENSIONS_VARIABLE
from rampcli.settings.attributes import field_name
from rampcli.settings.by_key import (
    END_OF_PHASE,
    extension_of,
    find_setting,
    foreign_words,
    is_mapping,
    is_of_extension,
    may_change,
    settings,
    settings_of,
)
from rampcli.settings.phase_keys import PHASES, UNTIL, phase_key, split_phase_key
from rampcli.words import NO_EXTENSIONS, SPELLINGS, refusal_of
from rampcli.words.refused import KNOWN_ELSEWHERE, known_elsewhere

LIST_ALL = "rampcli pretrain --factory llama3_tiny --cfg, which lists all settings"


def choices_in(section: str, typed: str, *, leave_out: Collection[str] = ()) -> list[Assignments]:
    """Returns the settings of a section, or of a group, that take what was typed for the whole.

    `adamw_torch` for `optim` means `optim.optimizer=adamw`.
    """
    return [
        set_to(key, choice)
        for key, setting in settings().items()
        if key.startswith(f"{section}.") and setting.extensible
        for choice in setting.choices
        if typed.lower().startswith(choice) and choice not in leave_out
    ]


def unknown_key(
    key: str,
    groups: Collection[str] = (),
    *,
    offer: Callable[[Sequence[str]], Sequence[Remedy]] = list,
) -> UsageError:
    """Returns the error for a key that cannot be set, which offers keys and config groups.

    Args:
        offer: returns the remedies that use other keys or groups instead.
    """
    if (parts := split_phase_key(key)) is not None:
        return _unknown_in_phase(*parts, offer=offer)
    if key.partition(".")[0] == PHASES:
        return _no_key_of_a_phase(key, offer=offer)
    if inside := _settings_in(key):
        return _is_section(key, inside)
    if is_mapping(whole := key.rpartition(".")[0]):
        return UsageError(
            f"{key} cannot be set on its own: {whole} takes a mapping",
            keys=(whole,),
            remedy=settings()[whole].example(),
        )
    if refused := refusal_of(key):
        problem, ways = refused
        return UsageError(
            f"{key} {problem}",
            keys=(key,),
            remedy=[one for way in ways for one in (offer([way]) if find_setting(way) else [way])],
        )
    extension = extension_of(key)
    name = key.split(".")[1] if is_of_extension(key) else None
    if name not in (None, *NO_EXTENSIONS) and extension is None:
        return UsageError(
            f"there is no setting {key}, and no extension {name}",
            keys=(key,),
            remedy=[*offer(nearest_keys(key)), how_to_know(name)],
        )
    if extension is None:
        near = nearest_keys(key)
    else:
        own = [setting.key for setting in settings_of(extension)]
        near = difflib.get_close_matches(key, own) or own[:3]
    is_known = known_elsewhere(key, KNOWN_ELSEWHERE) is not None
    among = () if is_known or "." in key else groups
    near_groups = difflib.get_close_matches(key, among, n=1, cutoff=0.6)
    return UsageError(
        f"there is no setting {key}",
        keys=(key, *near),
        remedy=[*offer([*near_groups, *near])] or LIST_ALL,
    )


def _settings_in(section: str) -> list[str]:
    return [key for key in settings() if key.startswith(f"{section}.")]


def _is_section(section: str, offered: Sequence[str]) -> UsageError:
    return UsageError(
        f"{section} is a section, not a setting",
        keys=(section,),
        remedy=", ".join(offered[:3]) + (", ..." if len(offered) > 3 else ""),
    )


def _no_key_of_a_phase(
    key: str, *, offer: Callable[[Sequence[str]], Sequence[Remedy]]
) -> UsageError:
    name, _, inside = key.partition(".")[2].partition(".")
    if inside:
        is_nested = split_phase_key(inside) is not None
        better = inside if is_nested else phase_key(_identifier(name), inside)
        return UsageError(
            f"{key}: a phase has no phases"
            if is_nested
            else f"{key}: the name of a phase consists of letters, digits and _, and does not begin"
            " with a digit",
            keys=(key,),
            remedy=[*offer([better])] if find_setting(better) else _end_of(name),
        )
    drops = [] if name else [set_to(PHASES, None, note=", which drops all phases")]
    return UsageError(
        f"{key} is {'a phase' if name else 'a section'}, not a setting",
        keys=(key,),
        remedy=[_end_of(name if name not in ("", UNTIL) else "main"), *drops],
    )


def _end_of(phase: str) -> Assignments:
    return set_to(phase_key(_identifier(phase), UNTIL), END_OF_PHASE.example_value)


def _identifier(name: str) -> str:
    """Returns a name of a phase that resembles one that cannot be."""
    words = re.sub(r"\W", "_", name)
    return words if words.isidentifier() else f"phase_{words}"


def _unknown_in_phase(
    name: str, key: str, *, offer: Callable[[Sequence[str]], Sequence[Remedy]]
) -> UsageError:
    if changing := [phase_key(name, one) for one in _settings_in(key) if may_change(one)]:
        return _is_section(phase_key(name, key), changing)
    means_end = bool(difflib.get_close_matches(key, [UNTIL, "end"]))

    def offer_inside(keys: Sequence[str]) -> Sequence[Remedy]:
        changing = [UNTIL] if means_end else [one for one in keys if may_change(one)]
        if not changing and not set(LENGTH_KEYS).isdisjoint(keys):
            return [_end_of(name)]
        return offer([phase_key(name, one) for one in changing])

    error = unknown_key(key, offer=offer_inside)
    error.add_context(f"phase {name}")
    error.keys = tuple(phase_key(name, one) for one in error.keys)
    return error


def how_to_know(extension: str) -> str:
    """Returns how to make an extension known."""
    return f"{EXTENSIONS_VARIABLE}=FILE.py in the environment, if FILE.py registers {extension}"


def nearest_keys(key: str) -> list[str]:
    """Returns up to three settings that mean the same elsewhere, or have a name near to a key's."""
    if meant := known_elsewhere(key, KNOWN_ELSEWHERE):
        return [meant]
    every = (*settings(), *foreign_words())
    last = key.rpartition(".")[2]
    names: dict[str, list[str]] = {}
    for known in every:
        names.setdefault(known.rpartition(".")[2], []).append(known)
    near = difflib.get_close_matches(key, every, n=3, cutoff=0.75) if "." in key else []
    near += names.get(last, [])
    if not near:
        near = difflib.get_close_matches(key, every, n=3, cutoff=0.75)
        for name in difflib.get_close_matches(last, names, n=2, cutoff=0.75):
            near += names[name]
    if not near and "." in key:
        near = [known for known in every if known.startswith(key)]
    return list(dict.fromkeys(SPELLINGS.get(known, known) for known in near))[:3]


def unknown_attribute(key: str) -> AttributeError:
    """Returns the error for an attribute that does not exist, which offers the nearest one."""
    error = unknown_key(key)
    if near := error.keys[1:]:
        *sections, name = near[0].split(".")
        way = f"the nearest is {'.'.join((*sections, field_name(name)))}"
    else:
        way = f"try {error.remedy}"
    return AttributeError(f"{error.message}; {way}")


def deleted_attribute(key: str) -> AttributeError:
    """Returns the error for an attribute that would be deleted, which offers its default."""
    setting = find_setting(key.removesuffix("_"))
    if setting is None:
        return unknown_attribute(key)
    return AttributeError(f"{key} cannot be deleted; try {key} = {setting.default!r}, its default")
