"""The snapshot of a resolved configuration: what the workers read; nobody composes twice."""

from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rampcli.config import plain_yaml
from rampcli.config.checks import SETTING_CHECKS, check_ranges
from rampcli.config.launch_checks import LAUNCH_CHECKS
from rampcli.config.schema import Config
from rampcli.config.settings import FOREIGN, flatten, leaves, nest
from rampcli.config.splits import SPLIT_CHECKS
from rampcli.config.values import build
from rampcli.errors import Report, UsageError

MOST_BYTES = 200_000
SETTINGS_CHECKS = (*SETTING_CHECKS, *SPLIT_CHECKS, *LAUNCH_CHECKS)
IDENTITY = (
    "seed",
    "model.",
    "data.source",
    "data.sequence_length",
    "data.split",
    "data.pad_last_window",
    "rampup.semantics",
    "rampup.decrease_batch_size_if_needed",
)


def settings(config: Config) -> dict[str, Any]:
    """The leaves of a resolved configuration as plain data, in the order of the schema, without other systems' words."""
    return {
        key: value.value if isinstance(value, Enum) else value
        for key, value in leaves(config)
        if key not in FOREIGN
    }


def identity(config: Config) -> dict[str, Any]:
    """The settings that decide what a checkpoint's tensors mean and which samples were consumed: a resume may not change them."""
    return {key: value for key, value in settings(config).items() if key.startswith(IDENTITY)}


def to_yaml(config: Config) -> str:
    """A resolved configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(nest(settings(config))))


def read(path: Path) -> Config:
    """Returns a snapshot as a configuration. Its settings are checked exactly as typed ones are.

    Raises:
        UsageError: the file does not exist or is not plain YAML; or a setting is unknown, of another type, out of range, or at odds with
            another.
    """
    try:
        _, root = plain_yaml.read(path, most_bytes=MOST_BYTES)
        tree = plain_yaml.values_of(root)
    except plain_yaml.NotPlainError as error:
        at = "" if error.line is None else f", line {error.line}"
        raise UsageError(f"cannot read {path}{at}: {error.reason}") from error
    config = build(flatten(tree), place=lambda _: str(path))
    for checks in ((check_ranges,), SETTINGS_CHECKS):  # the others rely on the ranges
        report = Report()
        for check in checks:
            with report.noting():
                check(config)
        for misfit in report.errors:
            misfit.set_by = misfit.set_by or (str(path),)
        report.close()
    return config
