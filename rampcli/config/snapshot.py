"""The snapshot of a resolved configuration: what the workers read; nobody composes twice."""

from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rampcli.config.schema import Config
from rampcli.config.settings import FOREIGN, flatten, leaves, nest
from rampcli.config.values import build
from rampcli.errors import UsageError

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
    return {key: value.value if isinstance(value, Enum) else value for key, value in leaves(config) if key not in FOREIGN}


def identity(config: Config) -> dict[str, Any]:
    """The settings that decide what a checkpoint's tensors mean and which samples were consumed: a resume may not change them."""
    return {key: value for key, value in settings(config).items() if key.startswith(IDENTITY)}


def to_yaml(config: Config) -> str:
    """A resolved configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(nest(settings(config))))


def read(path: Path) -> Config:
    """A snapshot as it was written.

    Raises:
        UsageError: there is none, or it is not one.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except Exception as error:  # a damaged file can fail in the scanner or in OmegaConf
        raise UsageError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{path} is not a configuration")
    return build(flatten({str(name): value for name, value in tree.items()}), place=lambda _: str(path))
