"""Composes a recipe's choices from conf/, and applies the overrides of a command line."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rampcli import plain_yaml
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.bundled import bundled
from rampcli.config.groups import (
    check_folder,
    check_option,
    folders,
    group_names,
    is_global,
    option_file,
    option_names,
)
from rampcli.config.layers import (
    COMMAND_LINE,
    PLAN,
    Entry,
    Layer,
    Precedence,
    Stack,
    edited_stack,
    merged,
    placed,
)
from rampcli.config.phase_keys import is_dropped
from rampcli.config.phases import check_dropped_phases
from rampcli.config.reading import parse
from rampcli.config.schema import Config
from rampcli.config.snapshot import MOST_BYTES, PLACES
from rampcli.config.yaml_leaves import SettingsLoader, leaves_of
from rampcli.errors import Report, UsageError, shown
from rampcli.words import SPELLINGS
from rampcli.words.rl import RL_COMMAND

ROOT = "config"
DEFAULT_RL = "grpo"
"""Option of the group `rl` for recipes without one of their own."""


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
    caller = f"{file.parent.name}/{file.name}"
    place = f"{caller}:{frame.f_lineno}"
    report, groups = Report(), group_names()
    words = parse(choices, groups=groups, place=place, report=report, unique=False)
    options = {
        group: shown(option)
        for group, option in words.items()
        if group in groups and _exists(group, option, None, place, report)
    }
    values = {key: value for key, value in words.items() if key not in groups}
    lines = dict.fromkeys(values, frame.f_lineno)
    entries = Layer.of(caller, Precedence.RECIPE, values, lines=lines, report=report).entries
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
    found = leaves_of(text)
    decided = {key for key, (_, place) in found.items() if place == PLAN}
    values = {
        key: value
        for key, (_, value) in found.items()
        # The plan decides anew: other settings, or another device, may change what it says.
        if not key.startswith(f"{PLACES}.") and f"{PLACES}.{key}" not in decided
    }
    report = Report()
    layer = Layer.of(
        path.name,
        Precedence.RECIPE,
        values,
        lines={key: line for key, (line, _) in found.items()},
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
    Python apply over the files and over what it was composed with, in any spelling. The words apply
    over all of these.

    Args:
        overrides: `group=option` and `key=value` words of the command line.
        config_dir: a folder of further group options.
        place: where the words come from, as a person would name it.
        report: receives the errors; a word with an error is left out.

    Raises:
        UsageError: without a report, all errors together: words that are not KEY=VALUE, unknown
            keys or options, and values of the wrong type.
    """
    found = report or Report()
    if config_dir is not None:
        with found.noting():
            check_folder(config_dir)
    groups = group_names(config_dir)
    words = parse(overrides, groups=groups, place=place, report=found)
    options = {
        group: shown(option)
        for group, option in words.items()
        if group in groups and _exists(group, option, config_dir, place, found)
    }
    stack = edited_stack(config, "recipe", Precedence.EDITED, report=found)
    composed, choices = stack.composed, stack.choices
    if options:
        choices = {key: entry for key, entry in choices.items() if key not in options} | options
        composed = _layers(
            choices, config_dir=config_dir, known=composed, by_user=options, report=found
        )
    values = {key: value for key, value in words.items() if key not in groups}
    layer = Layer.of(place, Precedence.USER, values, report=found)
    below = Stack(composed, stack.overrides, choices)
    found.errors += check_dropped_phases(layer, below)
    if report is None:
        found.close()
    return below.above(layer)


def rl_word(recipe: str, *, config_dir: Path | None = None) -> str:
    """Returns the word that makes a recipe's run one of reinforcement learning.

    It chooses the option of the group `rl` that has the recipe's name, or `rl=grpo`.
    """
    return f"rl={recipe if recipe in option_names('rl', config_dir) else DEFAULT_RL}"


def with_own_name(stack: Stack) -> Stack:
    """Returns the layers with another name in reinforcement learning than in pretraining.

    So the run directory is another one, too. A name that the user chooses stays.
    """
    if stack.entry(GENERATIONS_KEY).value is None or stack.precedence("name") > Precedence.EDITED:
        return stack
    name = Entry(f"{stack.entry('name').value}_rl", RL_COMMAND)
    return stack.above(Layer(RL_COMMAND, Precedence.RECIPE, {"name": name}))


def with_rl(config: Config, recipe: str) -> Config:
    """Returns the configuration that `rampcli rl` makes of a recipe."""
    return with_own_name(apply_overrides(config, [rl_word(recipe)], place=RL_COMMAND)).config()


def _layers(
    choices: Mapping[str, str | Entry],
    *,
    config_dir: Path | None,
    known: Iterable[Layer],
    report: Report,
    by_user: Collection[str] = (),
) -> tuple[Layer, ...]:
    """Returns a layer for each chosen file, in Hydra's order, and the recipe's values above them.

    Choices replace the defaults of conf/config.yaml in their places. Groups that only a user's
    folder has come last.

    A value goes below the files if a later choice is a group whose file also sets it, or drops its
    phase. The files of the groups in `by_user` get the precedence `CHOSEN`, above the recipe's.
    """
    read = {layer.name: layer for layer in known}
    files: dict[str, Layer] = {}
    options = {key: choice for key, choice in choices.items() if not isinstance(choice, Entry)}
    for group, option in (_defaults() | options).items():
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
            sets = files[key].entries
            hidden = [leaf for leaf in above if leaf in sets or is_dropped(leaf, sets)]
            below |= {leaf: above.pop(leaf) for leaf in hidden}
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


@cache
def _defaults() -> dict[str, str]:
    """Returns the default option of each group, in the order of conf/config.yaml."""
    path = bundled("conf") / f"{ROOT}.yaml"
    with _naming_file(path):
        root = yaml.load(path.read_text(encoding="utf-8"), SettingsLoader)
    return {
        group: option
        for entry in root["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
        if group.isidentifier()  # and not an override of one of Hydra's own groups
    }


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Adds its path to an error in a bundled file."""
    try:
        yield
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration files do not compose: {path}: {reason}") from error


def _exists(group: str, option: Any, config_dir: Path | None, place: str, report: Report) -> bool:
    before = len(report.errors)
    with report.noting(), placed(f"{group}={shown(option)} ({place})"):
        check_option(group, option, config_dir)
    return len(report.errors) == before


def _file_layer(path: Path, group: str, name: str, report: Report) -> Layer:
    """Returns the settings of a file of conf/; each place is `group/option.yaml:line`."""
    text = path.read_text(encoding="utf-8")
    with _naming_file(path), placed(name):
        leaves = leaves_of(text, "" if is_global(text) else group)
    return Layer.of(
        name,
        Precedence.CONF,
        {key: value for key, (_, value) in leaves.items()},
        lines={key: line for key, (line, _) in leaves.items()},
        report=report,
    )
