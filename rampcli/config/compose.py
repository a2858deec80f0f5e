"""From conf/ and a recipe's choices to one typed configuration, and the command line laid over it."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rampcli.bundled import bundled
from rampcli.config.leaves import build, flatten, known_keys, leaves
from rampcli.config.origin import COMMAND_LINE, DEFAULT, ConfFile, Layer, Origin, Source
from rampcli.config.schema import Config
from rampcli.errors import UsageError

ROOT = "config"


def compose(*choices: str) -> Config:
    """One typed, mutable configuration from conf/ and a recipe's choices.

    Args:
        choices: `group=option` (`"model=llama3_8b"`) and `key=value` (`"parallel.context_parallel_size=2"`); later ones win.

    Raises:
        UsageError: an unknown group, option or key, or a value of the wrong type.
    """
    frame = sys._getframe(1)
    caller = Path(frame.f_code.co_filename)
    return _compose(choices, caller=f"{caller.parent.name}/{caller.name}:{frame.f_lineno}", config_dir=None)


def lay_over(config: Config, overrides: Sequence[str], *, config_dir: Path | None = None) -> Config:
    """The configuration with what was typed laid over it, as if it were assigned in Python.

    Choosing another group option (`data=mock`) composes anew; what the recipe set in Python, and then the typed values, go on top.

    Args:
        config: as a recipe returned it.
        overrides: `group=option` and `key=value` words of the command line.
        config_dir: a folder of further group options.

    Raises:
        UsageError: a word that is not KEY=VALUE, an unknown key or option, or a value of the wrong type.
    """
    typed = _parse(overrides)
    groups = {key: value for key, value in typed.items() if _is_group(key, config_dir)}
    values = {key: value for key, value in typed.items() if key not in groups}
    origin: Origin = config.origin
    edits = {key: value for key, value in leaves(config) if origin.composed.get(key) != value}
    laid = {**origin.laid, **edits, **values}
    sources = origin.sources | dict.fromkeys(edits, Source(Layer.RECIPE, "recipe")) | dict.fromkeys(values, COMMAND_LINE)
    if groups:
        chosen = [f"{group}={option}" for group, option in groups.items()]
        origin = _compose((*origin.choices, *chosen), caller=origin.caller, config_dir=config_dir).origin
        sources = origin.sources | {key: sources[key] for key in laid}
    result = build({**origin.composed, **laid}, place=lambda key: sources[key].place)
    result.origin = replace(origin, composed=dict(leaves(result)), sources=sources, laid=laid)
    return result


def _compose(choices: Sequence[str], *, caller: str, config_dir: Path | None) -> Config:
    typed = _parse(choices, unique=False)
    for key, option in typed.items():
        if _is_group(key, config_dir):
            _check_option(key, option, config_dir)
    chosen = [choice for choice in choices if _is_group(choice.partition("=")[0], config_dir)]
    composed = _hydra(chosen, config_dir)
    files = tuple(_files(composed.hydra.runtime.choices, config_dir))
    tree = OmegaConf.to_container(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]), resolve=False)
    assert isinstance(tree, dict)
    from_files = flatten({str(name): value for name, value in tree.items()})
    values: dict[str, Any] = {}
    for key, value in typed.items():
        if _is_group(key, config_dir):  # a group that is chosen after a value says what it says
            said = {leaf for file in _files({key: value}, config_dir) for leaf in file.places()} if values else set()
            values = {leaf: kept for leaf, kept in values.items() if leaf not in said}
        else:
            values[key] = value
    origin = Origin(choices=tuple(choices), caller=caller, files=files)
    origin.sources = (
        dict.fromkeys(known_keys(), DEFAULT)
        | dict.fromkeys(from_files, Source(Layer.CONF, "conf"))
        | dict.fromkeys(values, Source(Layer.RECIPE, caller))
    )
    origin.composed = {**from_files, **values}
    config = build(origin.composed, place=lambda key: origin.place(key, origin.composed[key]))
    origin.composed = dict(leaves(config))
    config.origin = origin
    return config


def _hydra(chosen: Sequence[str], config_dir: Path | None) -> DictConfig:
    search = [] if config_dir is None else [f"hydra.searchpath=[{_quoted(f'file://{config_dir.resolve()}')}]"]
    with _hydra_errors(), initialize_config_dir(str(bundled("conf")), version_base="1.3"):
        return hydra_compose(ROOT, overrides=[*search, *chosen], return_hydra_config=True)


@contextmanager
def _hydra_errors() -> Any:
    """Show the cause of a failed composition, not the layers of the library around it."""
    try:
        yield
    except Exception as error:  # a stranger's YAML can fail in the scanner, in OmegaConf or in Hydra
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())
        raise UsageError(f"the configuration files do not compose: {reason}") from error


def _files(choices: Mapping[Any, Any], config_dir: Path | None) -> Iterable[ConfFile]:
    for group, option in ((str(group), str(option)) for group, option in choices.items()):
        path = _option_file(group, option, config_dir)
        if path is not None:
            is_global = "@package _global_" in path.read_text(encoding="utf-8").partition("\n")[0]
            yield ConfFile(path=path, name=f"{group}/{option}.yaml", package="" if is_global else str(group))


def _folders(config_dir: Path | None) -> list[Path]:
    return [bundled("conf")] if config_dir is None else [bundled("conf"), config_dir]


def _is_group(key: str, config_dir: Path | None) -> bool:
    return key.isidentifier() and any((folder / key).is_dir() for folder in _folders(config_dir))


def _option_file(group: str, option: str, config_dir: Path | None) -> Path | None:
    paths = [folder / group / f"{option}.yaml" for folder in _folders(config_dir)]
    return next((path for path in paths if path.is_file()), None)


def _check_option(group: str, option: Any, config_dir: Path | None) -> None:
    if Path(str(option)).name != str(option) or _option_file(group, str(option), config_dir) is None:
        options = sorted(path.stem for folder in _folders(config_dir) for path in (folder / group).glob("*.yaml"))
        raise UsageError(
            f"{group}={option}: there is no conf/{group}/{option}.yaml", keys=(group,), remedy=f"{group}={' or '.join(options)}"
        )


def _parse(words: Sequence[str], *, unique: bool = True) -> dict[str, Any]:
    """`KEY=VALUE` words as a mapping, values in Hydra's grammar.

    Raises:
        UsageError: a word that is none, a value that cannot be read, or (where `unique`) a key with two values.
    """
    parser = OverridesParser.create()
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{word!r} is not KEY=VALUE", remedy="rampcli pretrain --factory NAME KEY=VALUE")
        if key[0] in "+~":
            raise UsageError(
                f"{word}: settings are neither added nor deleted, they all exist",
                keys=(key.lstrip("+~"),),
                remedy=f"{key.lstrip('+~')}={text}" if key.lstrip("+~") in known_keys() else None,
            )
        try:
            override = parser.parse_override(word)
            value = override.value()
        except HydraException as error:
            raise UsageError(f"cannot read the value in {word}", keys=(key,), remedy=_readable(key, text)) from error
        if override.is_sweep_override():
            raise UsageError(f"{word}: one run has one value", keys=(key,), remedy=f"{key}={text.partition(',')[0]}")
        if unique and key in values and values[key] != value:
            raise UsageError(f"{key} is given twice: {values[key]} and {value}", keys=(key,), remedy="one of them")
        values.pop(key, None)  # the last one stands last
        values[key] = value
    return values


def _readable(key: str, text: str) -> str:
    for opening, closing in ("[]", "{}", "()"):
        if text.count(opening) > text.count(closing):
            return f"closing the bracket: '{key}={text}{closing}'"
    return f"quotes: \"{key}='{text}'\""


def _quoted(text: str) -> str:
    """`text` as a string in Hydra's grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
