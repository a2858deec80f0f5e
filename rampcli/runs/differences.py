"""The settings in which runs differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from rampcli.errors import shown

SELF = ("name", "run_dir", "resume")
"""Settings that tell runs apart, and not how they train."""
UNSET = "unset"
"""Stands for the value of a setting that a run does not have."""


def differing_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the settings that differ between runs, each with its value in every run, as typed.

    A run does not have a setting that none of its phases sets, or that came with a later version.

    Args:
        runs: settings of each run by dotted key.
    """
    keys = dict.fromkeys(key for settings in runs for key in settings if key not in SELF)
    values = {
        key: [shown(settings[key]) if key in settings else UNSET for settings in runs]
        for key in keys
    }
    return {key: several for key, several in values.items() if len(set(several)) > 1}
