"""What other people's Hydra applications use: the schema of the settings, and their composed tree.

Such an application composes our groups with its own files. Hydra checks them by the schema.
"""

import dataclasses
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Optional

from rampcli.config.groups import file_of, folders
from rampcli.config.layers import Entry, Layer, Precedence, Stack
from rampcli.config.yaml_files import HYDRA, read_file
from rampcli.errors import ErrorReport, UsageError
from rampcli.files import bundled
from rampcli.plugins.extensions import ENTRY_POINTS, names, section_of
from rampcli.settings.by_key import Setting, flatten, nest, phase_leaves, settings
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import PHASES
from rampcli.words import FOREIGN

HYDRA_PLACE = "Hydra"
"""Place of the values of an application. OmegaConf does not keep their files."""


def from_hydra(cfg: Any) -> Config:
    """Returns the settings that an application of Hydra has composed.

    A value that equals the setting's default counts as not set. One that equals what a chosen file
    of conf/ says comes from this file. Of settings that say one thing, such as `trainer.max_steps`
    and `trainer.max_samples`, the command line's applies, then that of the application's files.

    Args:
        cfg: the `DictConfig` of a `@hydra.main` function, or a mapping. It has settings of rampcli
            only. Settings that are below a key of the application are passed as `cfg.KEY`.

    Raises:
        UsageError: all unknown keys, values of the wrong type and references that lead nowhere,
            together.
    """
    tree = _plain(cfg)
    tree.pop(HYDRA, None)
    phases = tree.pop(PHASES, None)
    report = ErrorReport()
    for name in [name for name, one in tree.items() if isinstance(one, Mapping)]:
        if name not in _sections():
            report.errors.append(_no_section(name, tree.pop(name)))
    defaults = flatten(_defaults())
    values = {
        key: value
        for key, value in flatten(tree).items()
        if key not in defaults or value != defaults[key]
    }
    with report.noting():
        values |= dict(phase_leaves(phases))
    words = _words()
    choices = _choices()
    files = [
        _file_layer(
            f"{group}/{option}",
            group,
            values,
            Precedence.CHOSEN if group in words else Precedence.CONF,
        )
        for group, option in choices.items()
    ]
    of_files = {key for layer in files for key in layer.entries}
    own = {key: value for key, value in values.items() if key not in of_files}
    typed = {key for key in own if any(f".{word}".endswith(f".{key}") for word in words)}
    layers = [
        Layer.of(HYDRA_PLACE, precedence, {key: own[key] for key in keys}, report=report)
        for precedence, keys in (
            (Precedence.RECIPE, [key for key in own if key not in typed]),
            (Precedence.USER, [key for key in own if key in typed]),
        )
    ]
    report.close()
    return Stack(composed=tuple(files), overrides=tuple(layers), choices=choices).config()


def schema() -> Any:
    """Returns the settings as a structured config, which Hydra's users name `rampcli/schema`."""
    from omegaconf import OmegaConf

    config = OmegaConf.structured(_schema_class())
    for section in (PHASES, *_extension_sections()):
        # The names of phases, and the settings of extensions, are not known here.
        OmegaConf.set_struct(OmegaConf.select(config, section), False)
    return config


def _defaults() -> dict[str, Any]:
    defaults = {key: setting.default for key, setting in settings().items()}
    return nest(defaults | {section: {} for section in _extension_sections()})


def _plain(cfg: Any) -> dict[str, Any]:
    """Returns a composed tree as plain data, with its references resolved.

    Raises:
        UsageError: a reference leads nowhere, a value is missing, or it is no mapping.
    """
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(cfg, Mapping) and not isinstance(cfg, DictConfig):
        cfg = OmegaConf.create(dict(cfg))
    if not isinstance(cfg, DictConfig):
        raise UsageError(
            f"from_hydra takes the mapping that Hydra composed, not {type(cfg).__name__}",
            remedy="the cfg of your @hydra.main function, or cfg.KEY",
        )
    try:
        tree = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        text = " ".join((error.msg or str(error)).split("\n")[0].split())
        raise UsageError(
            f"{key}: {text}", keys=(key,), remedy="a value in its place", set_by=(HYDRA_PLACE,)
        ) from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _sections() -> set[str]:
    """Returns the names of sections, and those of sections that other systems have."""
    return {key.partition(".")[0] for key in (*settings(), *FOREIGN) if "." in key}


def _no_section(name: str, content: Mapping[str, Any]) -> UsageError:
    is_below = not _sections().isdisjoint(map(str, content))
    return UsageError(
        f"there is no section {name}",
        keys=(name,),
        remedy=f"from_hydra(cfg.{name})"
        if is_below
        else "our settings below a key of their own: from_hydra(cfg.KEY)",
        set_by=(HYDRA_PLACE,),
    )


def _choices() -> dict[str, str]:
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return {}
    chosen = {
        group.partition("@")[0]: option
        for group, option in HydraConfig.get().runtime.choices.items()
    }
    return {
        group: option
        for group, option in chosen.items()
        if isinstance(option, str) and file_of(f"{group}/{option}", folders()) is not None
    }


def _words() -> set[str]:
    """Returns the keys and groups that were typed for the application."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return set()
    words = HydraConfig.get().overrides.task
    return {word.lstrip("+~").partition("=")[0].partition("@")[0] for word in words}


def _file_layer(name: str, group: str, values: Mapping[str, Any], precedence: Precedence) -> Layer:
    """Returns the layer of a file of conf/, with the values that still apply."""
    path = bundled("conf") / f"{name}.yaml"
    file = read_file(path, f"{name}.yaml")
    leaves = file.leaves(group if file.package is None else "")
    kept = {
        key: Entry(value, file.name, line)
        for key, (line, value) in leaves.items()
        if key in values and values[key] == value
    }
    report = ErrorReport()
    layer = Layer.of(file.name, precedence, kept, report=report)
    report.close()
    return layer


def _extension_sections() -> list[str]:
    """Returns the sections of the extensions that are known, such as `optim.lion`."""
    return [f"{section_of(key)}{name}" for key in ENTRY_POINTS for name in names(key)]


def _schema_class() -> type:
    tree = nest(settings())
    for section in _extension_sections():
        branch = tree
        *parents, name = section.split(".")
        for parent in parents:
            branch = branch[parent]
        branch.setdefault(name, dict[str, Any])
    return _section_class("Config", {**tree, PHASES: dict[str, Any]})


def _section_class(name: str, tree: Mapping[str, Any]) -> type:
    """Returns a section as a dataclass.

    It is never instantiated, so a field may have the name of a Python keyword: `checkpoint.async`.
    """
    types: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for key, one in tree.items():
        if isinstance(one, Setting):
            types[key] = _type_of(one)
            values[key] = _field(one.default)
        elif isinstance(one, Mapping):
            types[key] = values[key] = _section_class(f"{name}_{key}", one)
        else:
            types[key] = one
            values[key] = dataclasses.field(default_factory=dict)
    made = type(name, (), {"__annotations__": types, **values})
    return dataclasses.dataclass(init=False, repr=False, eq=False)(made)


def _field(default: Any) -> Any:
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: deepcopy(default))
    return default


def _type_of(setting: Setting) -> Any:
    """Returns the type of a setting as OmegaConf checks it, or Any.

    Counts may be written `50M`, and rampcli itself checks choices and lists.
    """
    is_choice = bool(setting.choices) and setting.type is not bool
    if setting.takes_number:
        return Any
    if is_choice or setting.type in (bool, str, float):
        kind = str if is_choice else setting.type
        return Optional[kind] if setting.optional else kind  # noqa: UP045
    return Any
