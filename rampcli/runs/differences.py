"""The settings in which runs differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from rampcli.errors import shown
from rampcli.settings.phase_keys import split_phase_key

OWN_SETTINGS = ("name", "run_dir", "resume")
"""Settings that tell runs apart, and not how they train."""
UNSET = "unset"
"""Stands for the value of a setting that a run does not have."""


def differing_settings(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the settings that differ between runs, each with its value in every run, as typed.

    A run does not have a setting that none of its phases sets, or that came with a later version.
    The settings of phases come last, phase by phase.

    Args:
        runs: settings of each run by dotted key.
    """
    found = dict.fromkeys(key for settings in runs for key in settings if key not in OWN_SETTINGS)
    phases = ["", *dict.fromkeys(map(_phase, found))]
    keys = sorted(found, key=lambda key: phases.index(_phase(key)))
    values = {
        key: [shown(settings[key]) if key in settings else UNSET for settings in runs]
        for key in keys
    }
    return {key: several for key, several in values.items() if len(set(several)) > 1}


def _phase(key: str) -> str:
    """Returns the name of the phase that a key is a setting of, or "" for one of the run."""
    return (split_phase_key(key) or ("",))[0]
