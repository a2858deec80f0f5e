"""Resolves recipes with words as typed on the command line."""

import pytest

from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve

RAMP = {
    "per_device_batch_size": 16.0,
    "enable_rampup_batch_size": True,
    "per_device_batch_size_start": 4.0,
    "per_device_batch_size_increment": 2.0,
    "global_rampup_samples": 500,
}
"""On 128 devices, a ramp from 512 to 2048 in steps of 256."""


def words(settings):
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in settings.items()
    ]


def resolved_with(config, *typed):
    return resolve(apply_overrides(config, typed))


def refusal_of(config):
    with pytest.raises(UsageError) as refusal:
        resolve(config)
    return refusal.value
