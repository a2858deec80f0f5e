"""From conf/ and a recipe's choices to one typed configuration, and the command line laid over it."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rampcli.bundled import bundled
from rampcli.config.groups import check_folder, check_option, folders, group_names, option_file
from rampcli.config.origin import COMMAND_LINE, DEFAULT, ConfFile, Layer, Origin, Source
from rampcli.config.schema import Config
from rampcli.config.settings import flatten, leaves, settings
from rampcli.config.values import build
from rampcli.config.words import as_option, parse, quoted
from rampcli.errors import Report, UsageError

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
    report = Report()
    config = _compose(
        choices,
        caller=f"{caller.parent.name}/{caller.name}:{frame.f_lineno}",
        config_dir=None,
        report=report,
    )
    report.close()
    return config


def lay_over(
    config: Config,
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    place: str = COMMAND_LINE,
    report: Report | None = None,
) -> Config:
    """The configuration with what was typed laid over it, as if it were assigned in Python.

    Choosing another group option (`data=mock`) composes anew; what the recipe set in Python, and then the typed values, go on top.

    Args:
        config: as a recipe returned it.
        overrides: `group=option` and `key=value` words of the command line.
        config_dir: a folder of further group options.
        place: where the words come from, as a person would name it.
        report: takes the errors; a word with one is left out.

    Raises:
        UsageError: words that are not KEY=VALUE, unknown keys or options, and values of the wrong type, together, where there is no
            `report`.
    """
    own = report or Report()
    if config_dir is not None:
        with own.noting():
            check_folder(config_dir)
    groups = group_names(config_dir)
    typed = parse(overrides, groups=groups, place=place, report=own)
    values = {key: value for key, value in typed.items() if key not in groups}
    options = {
        group: option
        for group, option in typed.items()
        if group in groups and _exists(group, option, config_dir, place, own)
    }
    origin: Origin = config.origin
    edits = origin.edits(dict(leaves(config)))
    laid = {**origin.laid, **edits, **values}
    sources = (
        origin.sources
        | dict.fromkeys(edits, Source(Layer.RECIPE, "recipe"))
        | dict.fromkeys(values, Source(Layer.USER, place))
    )
    if options:
        chosen = [as_option(group, option) for group, option in options.items()]
        origin = _compose(
            (*origin.choices, *chosen), caller=origin.caller, config_dir=config_dir, report=own
        ).origin
        sources = origin.sources | {key: sources[key] for key in laid}
    result = build({**origin.composed, **laid}, place=lambda key: sources[key].place, report=own)
    composed = dict(leaves(result))
    result.origin = replace(
        origin,
        composed=composed,
        sources=sources,
        laid={key: composed[key] for key in laid if key in composed},
    )
    if report is None:
        own.close()
    return result


def _compose(
    choices: Sequence[str], *, caller: str, config_dir: Path | None, report: Report
) -> Config:
    groups = group_names(config_dir)
    typed = parse(choices, groups=groups, place=caller, report=report, unique=False)
    chosen = {
        key: option
        for key, option in typed.items()
        if key in groups and _exists(key, option, config_dir, caller, report)
    }
    composed = None
    with report.noting():
        known = group_names()  # the root names an option of each of these; another group is added
        composed = _hydra(
            [
                f"{'' if group in known else '+'}{as_option(group, option)}"
                for group, option in chosen.items()
            ],
            config_dir,
        )
    if composed is None:
        report.close()
    assert composed is not None
    files = tuple(_files(composed.hydra.runtime.choices, config_dir))
    tree = OmegaConf.to_container(
        OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]),
        resolve=False,
    )
    assert isinstance(tree, dict)
    from_files = flatten({str(name): value for name, value in tree.items()})
    recipe: dict[str, Any] = {}
    outdone: dict[str, Any] = {}
    for key, value in typed.items():
        if key in chosen:  # a group that is chosen after a value says what it says
            replaced = (
                {leaf for file in _files({key: value}, config_dir) for leaf in file.says}
                & recipe.keys()
                if recipe
                else set()
            )
            outdone |= {leaf: recipe.pop(leaf) for leaf in replaced}
        elif key not in groups:
            recipe[key] = value
    origin = Origin(
        choices=tuple(choices), caller=caller, files=files, recipe=recipe, outdone=outdone
    )
    origin.sources = (
        dict.fromkeys(settings(), DEFAULT)
        | dict.fromkeys(from_files, Source(Layer.CONF, "conf"))
        | dict.fromkeys(recipe, Source(Layer.RECIPE, caller))
    )
    origin.composed = {**from_files, **recipe}
    config = build(
        origin.composed, place=lambda key: origin.place(key, origin.composed[key]), report=report
    )
    origin.composed = dict(leaves(config))
    config.origin = origin
    return config


def _exists(group: str, option: Any, config_dir: Path | None, place: str, report: Report) -> bool:
    before = len(report.errors)
    with report.noting():
        try:
            check_option(group, option, config_dir)
        except UsageError as error:
            error.set_by = error.set_by or (place,)
            raise
    return len(report.errors) == before


def _hydra(chosen: Sequence[str], config_dir: Path | None) -> DictConfig:
    search = (
        []
        if config_dir is None
        else [f"hydra.searchpath=[{quoted(f'file://{config_dir.resolve()}')}]"]
    )
    with _hydra_errors(), initialize_config_dir(str(bundled("conf")), version_base="1.3"):
        return hydra_compose(ROOT, overrides=[*search, *chosen], return_hydra_config=True)


@contextmanager
def _hydra_errors() -> Any:
    """Show the cause of a failed composition, not the layers of the library around it."""
    try:
        yield
    except (
        Exception
    ) as error:  # a stranger's YAML can fail in the scanner, in OmegaConf or in Hydra
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())
        raise UsageError(f"the configuration files do not compose: {reason}") from error


def _files(choices: Mapping[Any, Any], config_dir: Path | None) -> Iterable[ConfFile]:
    for group, option in ((str(group), str(option)) for group, option in choices.items()):
        path = option_file(group, option, folders(config_dir))
        if path is not None:
            with path.open(encoding="utf-8") as lines:
                is_global = "@package _global_" in lines.readline()
            yield ConfFile(
                path=path, name=f"{group}/{option}.yaml", package="" if is_global else group
            )
