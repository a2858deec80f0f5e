"""The snapshot of a configuration in a run directory: every setting, and where it was set.

Workers read it.
"""

from pathlib import Path
from typing import Any

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.config.layers import DEFAULT, Entry, Layer, Precedence, Stack, placed, stack_of
from rampcli.config.phases import settings_of_phases
from rampcli.errors import ErrorReport, UsageError, printable, shown
from rampcli.files import plain_yaml
from rampcli.settings.by_key import (
    changes,
    find_setting,
    flatten,
    is_of_extension,
    leaves,
    nest,
    settings,
)
from rampcli.settings.checks import CHECKS, check_ranges
from rampcli.settings.config import Config
from rampcli.settings.facts import IDENTITY
from rampcli.settings.model import ModelConfig
from rampcli.settings.phase_keys import split_phase_key
from rampcli.settings.trainer import TrainerConfig
from rampcli.settings.unknown_keys import unknown_key
from rampcli.words import FOREIGN, KEYS

MOST_SNAPSHOT_BYTES = 200_000
_ESCAPED = "$\u00a0{"
"""Stands for `${` in a place while OmegaConf, which would read it as a reference, writes YAML."""
PLACES_SECTION = "set_by"
"""The section with the place of each setting that is not left at its default."""


def identity(config: Config) -> dict[str, Any]:
    """Returns the settings that decide what a checkpoint's tensors and consumed samples mean.

    A resume must not change them. In reinforcement learning, a sample is a prompt with its
    responses and their rewards.
    """
    return {key: value for key, value in leaves(config) if changes(key, IDENTITY)}


def to_yaml(config: Config) -> str:
    """Returns a resolved configuration as YAML: its settings, then the places that set them."""
    from omegaconf import OmegaConf

    stack = stack_of(config)
    values = dict(leaves(config))
    places = {key: printable(stack.entry(key).place) for key in values}
    # A reference in a place stays text, also that of a folder named ${x.
    set_by = {
        key: place.replace("${", _ESCAPED) for key, place in places.items() if place != DEFAULT
    }
    content = nest(values) | ({PLACES_SECTION: set_by} if set_by else {})
    return OmegaConf.to_yaml(OmegaConf.create(content)).replace(_ESCAPED, "${")


def unit(path: Path) -> str:
    """Returns what the run of a snapshot counts: samples or prompts.

    The settings are not checked: a run may be looked at whose files are gone.
    """
    try:
        return unit_in(read_tree(path))
    except UsageError:
        return "samples"


def unit_in(tree: dict[str, Any]) -> str:
    """Returns what the run of a snapshot counts, "prompts" or "samples", from its content."""
    rl = tree.get("rl")
    is_rl = isinstance(rl, dict) and rl.get("generations_per_prompt") is not None
    return "prompts" if is_rl else "samples"


def read_tree(path: Path) -> dict[str, Any]:
    """Returns the content of a snapshot, unchecked.

    Raises:
        UsageError: the file does not exist or is not plain YAML.
    """
    try:
        # The places may name references; typing the values refuses any there.
        _, root = plain_yaml.read(path, most_bytes=MOST_SNAPSHOT_BYTES, allows_references=True)
        return plain_yaml.values_of(root)
    except plain_yaml.NotPlainError as error:
        at = "" if error.line is None else f", line {error.line}"
        raise UsageError(f"cannot read {path}{at}: {error.reason}") from error


def read(path: Path) -> Config:
    """Returns the configuration of a snapshot.

    Raises:
        UsageError: the file does not exist or is not plain YAML; or as `config_in`.
    """
    return config_in(read_tree(path), path)


def config_in(tree: dict[str, Any], path: Path) -> Config:
    """Returns the configuration of a snapshot from its content.

    Its settings are checked exactly as typed ones are. A snapshot that names no places, as earlier
    versions wrote it, is itself the place of its settings.

    Args:
        tree: content of the snapshot. The places are removed from it.

    Raises:
        UsageError: settings are unknown, of the wrong type, out of range, or contradict each other.
    """
    report = ErrorReport()
    places = tree.pop(PLACES_SECTION, {})
    with report.noting(), placed(str(path)):
        _check_places(places)
    values = flatten(tree)
    # A run can be looked at without its extensions. They type their settings when they are used.
    own = {key: Entry(values.pop(key), str(path)) for key in list(values) if is_of_extension(key)}
    for word in FOREIGN.intersection(values):
        with report.noting(), placed(str(path)):
            _check_unused(word, values.pop(word))
    layer = Layer.of(str(path), Precedence.USER, values, report=report)
    report.close()
    entries = {
        key: Entry(entry.value, printable(places[key])) if key in places else entry
        for key, entry in {**layer.entries, **own}.items()
        if key in places or key in own or _differs_from_default(key, entry.value)
    }
    config = Stack(overrides=(Layer(layer.name, layer.precedence, entries),)).config()
    applying = [one.config for one in settings_of_phases(config)]
    for checks in ((check_ranges,), CHECKS):  # the others rely on the ranges
        for check in checks:
            for misfit in (misfit for one in applying for misfit in check(one)):
                misfit.set_by = misfit.set_by or (str(path),)
                report.errors.append(misfit)
        report.close()
    for one in applying:
        _check_complete(one, path)
    return config


def _differs_from_default(key: str, value: Any) -> bool:
    """Returns whether a value must be set. That of a phase must, as the run may have another."""
    return split_phase_key(key) is not None or value != settings()[key].default


def _check_complete(config: Config, path: Path) -> None:
    """Checks that settings which files decide are numbers, so that workers do not read them."""
    for key in (ModelConfig.vocab_size, TrainerConfig.val_samples):
        if dict(leaves(config))[key] is None:
            raise UsageError(
                f"{key}=null in {path}: a snapshot has the number", keys=(key,), set_by=(str(path),)
            )


def _check_unused(word: str, value: Any) -> None:
    if value is not None:
        raise UsageError(
            f"{word}={shown(value)} is a spelling of another system, which a snapshot cannot have",
            keys=(word,),
            remedy=KEYS.get(word, GLOBAL_KEY),
        )


def _check_places(places: Any) -> None:
    if not isinstance(places, dict):
        raise UsageError(f"{PLACES_SECTION} is not a section")
    for key, place in places.items():
        if find_setting(key) is None and not is_of_extension(key):
            raise unknown_key(key)
        if not isinstance(place, str):
            raise UsageError(f"{PLACES_SECTION}: the place of {key} is not a string", keys=(key,))
