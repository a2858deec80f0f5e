"""Composes a recipe's choices from conf/, and applies the overrides of a command line."""

import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from rampcli import plain_yaml
from rampcli.bundled import bundled
from rampcli.config.groups import (
    check_folder,
    check_option,
    folders,
    group_names,
    is_global,
    option_file,
)
from rampcli.config.layers import (
    COMMAND_LINE,
    Entry,
    Layer,
    Precedence,
    Stack,
    edited_stack,
    merged,
    placed,
)
from rampcli.config.schema import Config
from rampcli.config.settings import is_mapping
from rampcli.config.snapshot import MOST_BYTES, PLACES
from rampcli.config.words import as_option, parse, quoted
from rampcli.errors import Report, UsageError, shown
from rampcli.words import SPELLINGS

ROOT = "config"
_HYDRA = threading.Lock()
"""Held while Hydra composes: its state belongs to the whole process."""


class _Loader(yaml.SafeLoader):
    """Reads YAML as OmegaConf does: without dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def compose(*choices: str) -> Config:
    """Returns settings from the files in conf/ and from a recipe's choices.

    Args:
        choices: `group=option` (`"model=llama3_8b"`) and `key=value`
            (`"parallel.context_parallel_size=2"`). Later ones win.

    Raises:
        UsageError: unknown groups, options or keys, and values of the wrong type, all together.
    """
    frame = sys._getframe(1)
    file = Path(frame.f_code.co_filename)
    caller = f"{file.parent.name}/{file.name}:{frame.f_lineno}"
    report, groups = Report(), group_names()
    words = parse(choices, groups=groups, place=caller, report=report, unique=False)
    options = {
        group: shown(option)
        for group, option in words.items()
        if group in groups and _exists(group, option, None, caller, report)
    }
    values = {key: value for key, value in words.items() if key not in groups}
    entries = Layer.of(caller, Precedence.RECIPE, values, report=report).entries
    chosen: dict[str, str | Entry] = {}
    for word in words:
        chosen |= {word: options[word]} if word in options else {}
        chosen |= {key: entries[key] for key in (word, SPELLINGS.get(word, word)) if key in entries}
    stack = Stack(_layers(chosen, config_dir=None, known=(), report=report), choices=chosen)
    report.close()
    return stack.config()


def compose_file(path: Path) -> Config:
    """Returns the configuration of a YAML file of settings, as a recipe returns it.

    Args:
        path: the `config.yaml` of a run, or what `--cfg` prints.

    Raises:
        UsageError: the file cannot be read or is not plain YAML, or settings are unknown or of the
            wrong type, all together.
    """
    try:
        text, _ = plain_yaml.read(path, most_bytes=MOST_BYTES)
    except plain_yaml.NotPlainError as error:
        at = "" if error.line is None else f", line {error.line}"
        raise UsageError(
            f"--factory {path}{at}: {error.reason}",
            remedy="the config.yaml of a run, or what --cfg prints",
        ) from error
    root = yaml.compose(text, Loader=_Loader)
    found = {key: (line, value) for key, line, value in _leaves(root, "")}
    values = {key: value for key, (_, value) in found.items() if not key.startswith(f"{PLACES}.")}
    report = Report()
    layer = Layer.of(
        str(path),
        Precedence.RECIPE,
        values,
        place=lambda key: f"{path.name}:{found[key][0]}",
        report=report,
    )
    report.close()
    return Stack((layer,), choices=layer.entries).config()


def apply_overrides(
    config: Config,
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    place: str = COMMAND_LINE,
    report: Report | None = None,
) -> Stack:
    """Returns the layers of a configuration with a layer of words on top, for `resolve`.

    Another group option (`data=mock`) replaces the option's file. Settings that the recipe made in
    Python apply over the files, and the words apply over both.

    Args:
        config: as a recipe returned it.
        overrides: `group=option` and `key=value` words of the command line.
        config_dir: a folder of further group options.
        place: where the words come from, as a person would name it.
        report: receives the errors; a word with an error is left out.

    Raises:
        UsageError: without a report, all errors together: words that are not KEY=VALUE, unknown
            keys or options, and values of the wrong type.
    """
    own = report or Report()
    if config_dir is not None:
        with own.noting():
            check_folder(config_dir)
    groups = group_names(config_dir)
    words = parse(overrides, groups=groups, place=place, report=own)
    options = {
        group: shown(option)
        for group, option in words.items()
        if group in groups and _exists(group, option, config_dir, place, own)
    }
    stack = edited_stack(config, "recipe", Precedence.RECIPE, report=own)
    composed, choices = stack.composed, stack.choices
    if options:
        choices = {key: entry for key, entry in choices.items() if key not in options} | options
        composed = _layers(
            choices, config_dir=config_dir, known=composed, by_user=options, report=own
        )
    values = {key: value for key, value in words.items() if key not in groups}
    layer = Layer.of(place, Precedence.USER, values, report=own)
    if report is None:
        own.close()
    return Stack(composed, (*stack.overrides, layer), choices)


def _layers(
    choices: Mapping[str, str | Entry],
    *,
    config_dir: Path | None,
    known: Iterable[Layer],
    report: Report,
    by_user: Collection[str] = (),
) -> tuple[Layer, ...]:
    """Returns a layer for each chosen file, in Hydra's order, and the recipe's values above them.

    A value goes below the files if a later choice is a group whose file also sets it. The files of
    the groups in `by_user` get the precedence `CHOSEN`, above the recipe's.
    """
    read = {layer.name: layer for layer in known}
    files: dict[str, Layer] = {}
    for group, option in _chosen_options(choices, config_dir, report).items():
        name = f"{group}/{option}.yaml"
        if name in read:
            files[group] = read[name]
        elif (path := option_file(group, option, folders(config_dir))) is not None:
            files[group] = _file_layer(path, group, name, report)
    files |= {
        group: replace(files[group], precedence=Precedence.CHOSEN)
        for group in by_user
        if group in files
    }
    above: dict[str, Entry] = {}
    below: dict[str, Entry] = {}
    for key, choice in choices.items():
        if isinstance(choice, Entry):
            above[key] = choice
        else:
            below |= {leaf: above.pop(leaf) for leaf in files[key].entries if leaf in above}
    _check_spellings([*files.values()], report)
    return (
        Layer("recipe", Precedence.RECIPE, below),
        *files.values(),
        Layer("recipe", Precedence.RECIPE, above),
    )


def _check_spellings(files: Sequence[Layer], report: Report) -> None:
    """Checks that files that are equally near to the user spell a setting alike, or agree."""
    entries: dict[tuple[Precedence, str], Entry] = {}
    for layer in files:
        for key, entry in layer.entries.items():
            with report.noting():
                near = (layer.precedence, key)
                entries[near] = merged(key, entries.get(near), entry)


def _chosen_options(
    choices: Mapping[str, str | Entry], config_dir: Path | None, report: Report
) -> dict[str, str]:
    """Returns the option of each group. The file of a later one overrides that of an earlier one.

    Hydra composes whenever a user's folder is searched. Without one, choices replace the defaults
    of conf/config.yaml, as Hydra would do. Hydra would take longer than all the rest of a plan.
    """
    options = {group: option for group, option in choices.items() if not isinstance(option, Entry)}
    if config_dir is None:
        return _defaults() | options
    chosen = None
    with report.noting():
        chosen = _compose_with_hydra(options, config_dir)
    if chosen is None:
        report.close()
    assert chosen is not None
    return chosen


@cache
def _defaults() -> dict[str, str]:
    """Returns the default option of each group, in the order of conf/config.yaml."""
    path = bundled("conf") / f"{ROOT}.yaml"
    with _cause_shown(f"{path}: "):
        root = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    return {
        group: option
        for entry in root["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
        if group.isidentifier()  # and not an override of one of Hydra's own groups
    }


def _compose_with_hydra(options: Mapping[str, str], config_dir: Path) -> dict[str, str]:
    """Returns the option of each group, composed from conf/ and a user's folder.

    Raises:
        UsageError: the files do not compose.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    known = group_names()  # The root has a default for each of these. Other groups are added.
    words = [
        f"hydra.searchpath=[{quoted(f'file://{config_dir.resolve()}')}]",
        *(
            f"{'' if group in known else '+'}{as_option(group, option)}"
            for group, option in options.items()
        ),
    ]
    with (
        _HYDRA,
        _cause_shown(),
        initialize_config_dir(str(bundled("conf")), version_base="1.3"),
    ):
        composed = hydra_compose(ROOT, overrides=words, return_hydra_config=True)
    # Hydra lists the last group of its defaults first.
    chosen = reversed(list(composed.hydra.runtime.choices.items()))
    return {str(group): str(option) for group, option in chosen}


@contextmanager
def _cause_shown(place: str = "") -> Any:
    """Shows the cause of a failed composition instead of the library's own messages around it."""
    try:
        yield
    except Exception as error:  # from the YAML scanner, OmegaConf or Hydra
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())
        raise UsageError(f"the configuration files do not compose: {place}{reason}") from error


def _exists(group: str, option: Any, config_dir: Path | None, place: str, report: Report) -> bool:
    before = len(report.errors)
    with report.noting(), placed(place):
        check_option(group, option, config_dir)
    return len(report.errors) == before


def _file_layer(path: Path, group: str, name: str, report: Report) -> Layer:
    """Returns the settings of a file of conf/; each place is `group/option.yaml:line`."""
    text = path.read_text(encoding="utf-8")
    with _cause_shown(f"{path}: "):
        leaves = _leaves_of(text, "" if is_global(text) else group)
    return Layer.of(
        name,
        Precedence.CONF,
        {key: value for key, (_, value) in leaves.items()},
        place=lambda key: f"{name}:{leaves[key][0]}",
        report=report,
    )


@lru_cache(maxsize=100)
def _leaves_of(text: str, prefix: str) -> Mapping[str, tuple[int, Any]]:
    """Returns the line and the value of every leaf of a file. Recipes share most of their files."""
    root = yaml.compose(text, Loader=_Loader)
    return {key: (line, value) for key, line, value in _leaves(root, prefix)}


def _leaves(node: yaml.Node | None, prefix: str) -> Iterable[tuple[str, int, Any]]:
    """Yields the dotted key, the line and the value of every leaf of a file."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
        # An empty section is a leaf, so that a wrong one is noticed.
        is_section = isinstance(value_node, yaml.MappingNode) and not is_mapping(key)
        if is_section and value_node.value:
            yield from _leaves(value_node, key)
        else:
            value = SafeConstructor().construct_document(value_node)
            yield key, key_node.start_mark.line + 1, value
