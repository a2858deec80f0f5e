"""Types a value as its setting wants it, and sets it in a configuration."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from rampcli.batch.quantities import parse_count
from rampcli.errors import Assignments, UsageError, set_to, shown
from rampcli.files.records import MOST
from rampcli.settings.attributes import field_name
from rampcli.settings.by_key import Setting, find_setting, settings
from rampcli.settings.config import Config
from rampcli.settings.fields import Extensible
from rampcli.settings.phase_keys import is_phase, split_phase_key
from rampcli.settings.unknown_keys import unknown_key

SWITCHES = dict.fromkeys(("true", "yes", "on", "y"), True) | dict.fromkeys(
    ("false", "no", "off", "n"), False
)

_FRACTION = re.compile(r"([0-9]{1,9})/([1-9][0-9]{0,8})")


def put(config: Config, key: str, value: Any) -> None:
    """Sets a leaf. A field whose name is a Python keyword ends in `_`."""
    if (parts := split_phase_key(key)) is not None:
        phase, inside = parts
        config.phases.setdefault(phase, {})[inside] = value
        return
    *sections, name = key.split(".")
    section: Any = config
    for part in sections:
        if isinstance(section, Extensible):  # the name of an extension
            section = section.extensions.setdefault(part, {})
        else:
            section = getattr(section, part)
    if isinstance(section, dict):
        section[name] = value
    else:
        setattr(section, field_name(name), value)


def typed(key: str, value: Any) -> Any:
    """Returns a value converted to the type of its setting.

    Raises:
        UsageError: there is no such setting, or the value does not have its type.
    """
    setting = find_setting(key)
    if is_phase(key) and value is None:
        return None
    if setting is None:
        raise unknown_key(key)
    if isinstance(value, str):
        value = setting.former.get(value, value)
    items = _items(value)
    if any(isinstance(item, str) and ("${" in item or item == "???") for item in items):
        raise UsageError(
            f"{key}={shown(value)}: references (${{...}}) and ??? are not resolved here",
            keys=(key,),
            remedy="the value itself",
        )
    if value is None and setting.optional:
        return None
    if value == "None" and setting.optional:
        raise UsageError(
            f"{key}=None: the word for no value is null", keys=(key,), remedy=set_to(key, None)
        )
    try:
        converted = (
            value if _may_be_extension(setting, value) else _convert(_kind(setting, value), value)
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"{key}={shown(value)} is not {setting.type_name()}",
            keys=(key,),
            remedy=_nearest(setting, value) or setting.example_like(str(value)),
        ) from error
    numbers = [item for item in _items(converted) if isinstance(item, int | float)]
    if isinstance(converted, list) and setting.at_most is not None and key in settings():
        return converted  # A check of its own refuses items that are out of range.
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise UsageError(
            f"{key}={shown(value)} is not a finite number", keys=(key,), remedy=setting.example()
        )
    if setting.at_most is None and any(abs(number) > MOST for number in numbers):
        raise UsageError(
            f"{key}={shown(value)} is beyond {MOST:.0e}", keys=(key,), remedy=setting.example()
        )
    return converted


def _nearest(setting: Setting, value: Any) -> Assignments | None:
    """Returns the values of the setting's type that are nearest to what was typed, if any.

    A fraction such as `1/2` is the number `0.5`.
    """
    takes_fractions = setting.type is float or setting.takes_number
    if takes_fractions and isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        number = int(match[1]) / int(match[2])
        return set_to(setting.key, number) if setting.is_in_range(number) else None
    if setting.type is not int or not isinstance(value, float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not 1 <= abs(number) <= MOST:
        return None
    whole = sorted({math.floor(number), math.ceil(number)})
    return set_to(setting.key, *whole)


def _may_be_extension(setting: Setting, value: Any) -> bool:
    """Returns whether a value can be the name of an extension. Whether it exists is not checked."""
    return (
        setting.extensible
        and get_origin(setting.type) is Literal
        and isinstance(value, str)
        and value.isidentifier()
    )


def _kind(setting: Setting, value: Any) -> Any:
    return float if setting.takes_number and value not in setting.choices else setting.type


def _items(value: Any) -> list[Any]:
    """Returns the items of a list, the names and values of a mapping, or a single value."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else [value]


def _convert(kind: Any, value: Any) -> Any:
    if get_origin(kind) is dict:
        if not isinstance(value, dict) or not value:
            raise ValueError("not a mapping")
        name_kind, item_kind = get_args(kind)
        return {
            _convert(name_kind, name): _convert(item_kind, item) for name, item in value.items()
        }
    if get_origin(kind) is list:
        if not isinstance(value, list | tuple):
            raise ValueError("not a list")
        return [_convert(get_args(kind)[0], item) for item in value]
    if value is None or (isinstance(value, Mapping | Sequence) and not isinstance(value, str)):
        raise ValueError("not a single value")
    if get_origin(kind) is Literal:
        return get_args(kind)[get_args(kind).index(value)]  # the schema's own string
    if kind in (int, float) and isinstance(value, str) and not value.isascii():
        raise ValueError("not an ASCII number")
    if kind is int and isinstance(value, str):
        count = parse_count(value)
        value = value if count is None else count
    return _scalar(kind, value)


def _scalar(kind: type, value: Any) -> Any:
    """Returns a single value converted to its type by OmegaConf's rules.

    OmegaConf itself is not used, because importing it takes longer than checking all settings.
    """
    if kind is str or type(value) is kind:
        return kind(value)
    if kind is bool and isinstance(value, str) and value.lower() in SWITCHES:
        return SWITCHES[value.lower()]
    if kind is bool and isinstance(value, int | str):
        return int(value) != 0
    if type(value) is str or (kind is float and type(value) is int):
        return kind(value)
    raise ValueError("another type")
