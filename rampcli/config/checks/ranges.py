"""Checks each number on its own."""

from typing import Any

from rampcli.config.schema import Config
from rampcli.config.settings import Setting, leaves, settings
from rampcli.errors import Report, UsageError, set_to, shown


def check_ranges(config: Config) -> None:
    """Checks that every number is in its range.

    Raises:
        UsageError: all numbers out of range, together.
    """
    report = Report()
    for key, value in leaves(config):
        if key in settings():  # extensions check their own
            with report.noting():
                check_range(settings()[key], value)
    report.close()


def check_range(setting: Setting, value: Any) -> None:
    """Checks that a value, if it is a number, is in the range of its setting.

    Raises:
        UsageError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    key, text = setting.key, f"{setting.key}={shown(value)}"
    if setting.at_least is not None and value < setting.at_least:
        raise UsageError(
            f"{text} is below {setting.at_least:g}",
            keys=(key,),
            remedy=set_to(key, f"{setting.at_least:g}", note=" or more"),
        )
    if setting.above is not None and value <= setting.above:
        raise UsageError(
            f"{text} is not above {setting.above:g}", keys=(key,), remedy="a positive number"
        )
    if setting.below is not None and value >= setting.below:
        raise UsageError(
            f"{text} is not below {setting.below:g}",
            keys=(key,),
            remedy=set_to(key, setting.default),
        )
    if setting.at_most is not None and value > setting.at_most:
        most = shown(setting.at_most)
        raise UsageError(
            f"{text} is above {most}", keys=(key,), remedy=set_to(key, most, note=" or less")
        )
