"""Checks each number on its own."""

from collections.abc import Iterator
from typing import Any

from rampcli.errors import Remedy, UsageError, example_of, set_to, shown
from rampcli.settings import Config
from rampcli.settings.by_key import Setting, leaves, settings


def check_ranges(config: Config) -> Iterator[UsageError]:
    """Checks that every number is in its range."""
    for key, value in leaves(config):
        if key in settings():  # extensions check their own
            yield from check_range(settings()[key], value)


def check_range(setting: Setting, value: Any) -> Iterator[UsageError]:
    """Checks that a value, if it is a number, is in the range of its setting."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    key = setting.key
    # Beside words, the limit is nearer to a number that was typed than the setting's own word.
    offer = set_to if setting.takes_number else example_of
    remedy: Remedy = "a positive number"
    if setting.at_least is not None and value < setting.at_least:
        misfit = f"below {setting.at_least:g}"
        remedy = offer(key, f"{setting.at_least:g}", note=" or more")
    elif setting.above is not None and value <= setting.above:
        misfit = f"not above {setting.above:g}"
    elif setting.below is not None and value >= setting.below:
        misfit = f"not below {setting.below:g}"
        remedy = example_of(key, setting.default)
    elif setting.at_most is not None and value > setting.at_most:
        misfit = f"above {shown(setting.at_most)}"
        remedy = offer(key, shown(setting.at_most), note=" or less")
    else:
        return
    yield UsageError(f"{key}={shown(value)} is {misfit}", keys=(key,), remedy=remedy)
