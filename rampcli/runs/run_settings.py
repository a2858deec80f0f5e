"""The settings of a run, as far as this version takes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampcli.config import snapshot
from rampcli.errors import RampcliError, reason_of
from rampcli.estimate.model_size import ModelSize, model_size
from rampcli.settings.by_key import flatten, leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The settings of a run.

    Attributes:
        values: value of each setting by dotted key.
        unit: what the run counts: samples, or prompts.
        size: size of the model, or None if it is unknown.
        problem: why this version refuses the settings, or None. They may be those of another
            version. Then `values` is what the file says, and the size is unknown.
    """

    values: dict[str, Any]
    unit: str
    size: ModelSize | None
    problem: str | None


def read_settings(path: Path) -> RunSettings:
    """Returns the settings of a run, also if this version refuses them.

    Args:
        path: its config.yaml.

    Raises:
        UsageError: the file does not exist or is not plain YAML.
    """
    tree = snapshot.read_tree(path)
    unit = snapshot.unit_in(tree)
    try:
        config = snapshot.config_in(tree, path)
    except RampcliError as error:
        return RunSettings(values=flatten(tree), unit=unit, size=None, problem=reason_of(error))
    return RunSettings(
        values=dict(leaves(config)), unit=unit, size=model_size(config), problem=None
    )
