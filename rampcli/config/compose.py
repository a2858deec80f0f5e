"""Composes a recipe's choices or a primary file, and applies the overrides of a command line.

Files are composed first (`rampcli.config.composition`). Each becomes a layer, and the words of the
command line become the layer above them.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.composition import Composition, composed, folders_named, further_folders
from rampcli.config.file_layers import file_layers, missing, notes_on_hydra
from rampcli.config.foreign_files import (
    ForeignFiles,
    check_contradictions,
    foreign_files,
    further_names,
)
from rampcli.config.groups import (
    Primary,
    check_option,
    check_options_folder,
    folders,
    group_names,
    option_names,
)
from rampcli.config.layers import (
    COMMAND_LINE,
    PLAN_PLACE,
    Entry,
    Layer,
    Precedence,
    Stack,
    edited_stack,
    placed,
)
from rampcli.config.phases import check_dropped_phases
from rampcli.config.reading import group_of, names_search_path, override_of, parse
from rampcli.config.references import MISSING, Unresolved, has_reference
from rampcli.config.snapshot import MOST_SNAPSHOT_BYTES, PLACES_SECTION
from rampcli.config.values import typed
from rampcli.config.written import (
    Written,
    named_in_files,
    values_of_files,
    with_references_anew,
    written_values,
)
from rampcli.config.yaml_files import HYDRA, leaves_of, read_file
from rampcli.errors import ErrorReport, UsageError, shown
from rampcli.files import plain_yaml
from rampcli.settings.by_key import find_setting, settings
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import is_dropped, is_phase
from rampcli.words import SPELLINGS, WRAPPER, format_of, unwrapped
from rampcli.words.hydra import SWEEP_DIR, of_sweep
from rampcli.words.rl import RL_COMMAND

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
    report, groups = ErrorReport(), group_names()
    words = parse(choices, groups=groups, place=place, report=report, unique=False)
    options = {
        group: shown(option)
        for group, option in words.items()
        if group in groups and _exists(group, option, (), place, report)
    }
    values = {
        key: Entry(value, caller, frame.f_lineno)
        for key, value in words.items()
        if key not in groups
    }
    entries = Layer.of(caller, Precedence.RECIPE, values, report=report).entries
    chosen: dict[str, str | Entry] = {}
    for word in words:
        chosen |= {word: options[word]} if word in options else {}
        chosen |= {key: entries[key] for key in (word, SPELLINGS.get(word, word)) if key in entries}
    stack = Stack(choices=chosen, composition=composed(Primary(), options, {}))
    stack = _laid(stack, {}, place=caller, report=report)
    report.close()
    return stack.config()


def compose_file(path: Path) -> Config:
    """Returns the configuration of a YAML file of settings, as a recipe returns it.

    Raises:
        UsageError: the file cannot be read or is not plain YAML, or settings are unknown or of the
            wrong type, all together.
    """
    try:
        text, _ = plain_yaml.read(path, most_bytes=MOST_SNAPSHOT_BYTES, allows_references=True)
    except plain_yaml.NotPlainError as error:
        at = "" if error.line is None else f", line {error.line}"
        raise UsageError(
            f"--factory {path}{at}: {error.reason}",
            remedy="the config.yaml of a run, or what --cfg prints",
        ) from error
    found = leaves_of(text)
    decided = {key for key, (_, place) in found.items() if place == PLAN_PLACE}
    values = {
        key: Entry(value, path.name, line)
        for key, (line, value) in found.items()
        # The plan decides anew: other settings, or another device, may change what it says.
        if not key.startswith(f"{PLACES_SECTION}.") and f"{PLACES_SECTION}.{key}" not in decided
    }
    report = ErrorReport()
    layer = Layer.of(path.name, Precedence.RECIPE, values, report=report)
    report.close()
    return Stack((layer,), choices=layer.entries).config()


def primary_of(text: str) -> Primary | None:
    """Returns the primary file that a factory is, or None if it is a recipe or a plain file.

    A YAML file is one if it has a defaults list, references, or settings of Hydra. Those of a run,
    and those that `--cfg` prints, are plain.
    """
    path = Path(text.strip()).expanduser()
    if path.suffix != ".yaml" or not path.is_file():
        return None
    try:
        file = read_file(path, path.name)
    except UsageError:
        return None  # `compose_file` says what is wrong
    leaves = file.leaves()
    is_of_run = (path.parent / "plan.json").exists() or any(
        key.startswith(f"{PLACES_SECTION}.") for key in leaves
    )
    values = [value for _, value in leaves.values()]
    needs_hydra = (
        file.defaults is not None
        or format_of({key: value for key, (_, value) in leaves.items()}) is not None
        or any(map(has_reference, values))
        or any(value == MISSING for value in values)
        or any(key.startswith(f"{HYDRA}.") for key in leaves)
    )
    if is_of_run or not needs_hydra:
        return None
    return Primary(name=path.stem, config_path=path.parent)


def primary_stack(primary: Primary) -> Stack:
    """Returns the layers of a primary file and of the files that its defaults lists name.

    Raises:
        UsageError: a file is missing or wrong, or does not compose.
    """
    further = further_folders(primary)
    stack = Stack(primary=replace(primary, further=(*primary.further, *further)))
    return replace(stack, composition=composed(Primary(), {}, {})) if primary.is_root else stack


def apply_overrides(
    config: Config | Stack,
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    place: str = COMMAND_LINE,
    report: ErrorReport | None = None,
) -> Stack:
    """Returns the layers of a configuration with a layer of words on top, for `resolve`.

    Another group option (`data=mock`) replaces the option's file, and `+exp=mine` adds one. What
    such a file says applies over the recipe. The words that are settings apply over all of these.

    Args:
        config: from a recipe or `compose`, or layers from `primary_stack`.
        overrides: `group=option` and `key=value` words of the command line.
        config_dir: a folder of further group options.
        report: receives the errors; a word with an error is left out.

    Raises:
        UsageError: without a report, all errors together: words that are not KEY=VALUE, unknown
            keys or options, values of the wrong type, and files that do not compose.
    """
    found = report or ErrorReport()
    if config_dir is not None:
        with found.noting():
            check_options_folder(config_dir)
    stack = (
        config
        if isinstance(config, Stack)
        else edited_stack(config, "recipe", Precedence.EDITED, report=found)
    )
    stack = _searching(stack, overrides, config_dir, place=place, report=found)
    overrides = [word for word in overrides if not names_search_path(word)]
    groups = group_names(stack.primary.folders)
    choosing = [word for word in overrides if group_of(unwrapped(word), groups)]
    setting = [word for word in overrides if word not in choosing]
    options = {
        key: "" if option == "" else shown(option)
        for key, option in parse(choosing, groups=groups, place=place, report=found).items()
        if key.startswith("~") or _exists(key, option, stack.primary.folders, place, found)
    }
    before = len(found.errors)
    with found.noting():
        stack = _composed_with(stack, options)
    if len(found.errors) > before:
        found.close()  # without its files, nothing else of the configuration is known
    also = {SWEEP_DIR, *further_keys(stack)}
    words = parse(setting, groups=groups, place=place, report=found, also=also)
    words = dict(of_sweep(words) if stack.primary.sweeps else words)
    words.pop(SWEEP_DIR, None)
    stack = _laid(stack, words, place=place, by_user=options, report=found)
    if report is None:
        found.close()
    return stack


def _searching(
    stack: Stack, words: Sequence[str], config_dir: Path | None, *, place: str, report: ErrorReport
) -> Stack:
    """Returns layers whose files are also searched in `--config-dir` and in `hydra.searchpath`."""
    primary = stack.primary
    if config_dir is not None:
        primary = replace(primary, config_dir=config_dir)
    with report.noting():
        further = searched(words, place=place)
        primary = replace(primary, further=(*primary.further, *further))
    return replace(stack, primary=primary)


def further_keys(stack: Stack) -> set[str]:
    """Returns the keys that words may set besides settings: those of the files and their system."""
    return {*further_names(values_of_files(stack)), *named_in_files(stack)}


def searched(words: Sequence[str], *, place: str = COMMAND_LINE) -> tuple[Path, ...]:
    """Returns the folders that words `hydra.searchpath=[FOLDER,...]` add.

    Raises:
        UsageError: one is not a folder.
    """
    found: list[Path] = []
    for word in filter(names_search_path, words):
        override = override_of(word.lstrip("+"))
        text = word.partition("=")[2]
        entries = text.split(",") if override.is_sweep_override() else override.value()
        found += folders_named(entries, place=f"{word} ({place})")
    return tuple(found)


def rl_word(recipe: str, *, config_dir: Path | None = None) -> str:
    """Returns the word that makes a recipe's run one of reinforcement learning.

    It chooses the option of the group `rl` that has the recipe's name, or `rl=grpo`.
    """
    return f"rl={recipe if recipe in option_names('rl', folders(config_dir)) else DEFAULT_RL}"


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
    stack = apply_overrides(config, [rl_word(recipe)], place=RL_COMMAND)
    return relaid(with_own_name(stack)).config()


def _exists(key: str, option: Any, among: Sequence[Path], place: str, report: ErrorReport) -> bool:
    """Returns whether the option that a word chooses exists, and reports it otherwise."""
    group = key.lstrip("+").partition("@")[0]
    before = len(report.errors)
    with report.noting(), placed(f"{key}={shown(option)} ({place})"):
        check_option(group, option, among)
    return len(report.errors) == before


def _composed_with(stack: Stack, options: Mapping[str, str]) -> Stack:
    """Returns layers whose files are composed with further options, by group as they are typed."""
    # A plain file and settings made by hand need no files of conf/ without such a choice.
    has_files = stack.composition is not None or stack.primary.is_root
    if has_files and not options:
        return stack
    groups = {key.lstrip("+~") for key in options}
    kept = {key: one for key, one in stack.choices.items() if key.lstrip("+~") not in groups}
    choices: dict[str, str | Entry] = {**kept, **options}
    by_user = {*stack.chosen, *options}
    stack = replace(stack, choices=choices, chosen=frozenset(by_user))
    return replace(stack, composition=_composition(stack))


def compose_explained(stack: Stack) -> Composition:
    """Returns the composition of a stack's files with its defaults list, tree and choices."""
    return _composition(stack, explains=True)


def _composition(stack: Stack, *, explains: bool = False) -> Composition:
    every = {key: one for key, one in stack.choices.items() if isinstance(one, str)}
    recipe = {key: one for key, one in every.items() if key not in stack.chosen}
    chosen = {key: one for key, one in every.items() if key in stack.chosen}
    return composed(stack.primary, recipe, chosen, explains=explains)


def _laid(
    stack: Stack,
    words: Mapping[str, Any],
    *,
    place: str,
    by_user: Collection[str] = (),
    report: ErrorReport,
) -> Stack:
    """Returns the layers of the composed files and of the recipe, with words on top.

    Args:
        by_user: groups whose options the user has just chosen. Their files apply over the recipe.
    """
    composition: Composition | None = stack.composition
    foreign: ForeignFiles | None = None
    below, above = _recipe_layers(stack, composition)
    if composition is not None:
        stack = _with_recipe_hidden(stack, composition, by_user)
    written = written_values(stack, above, words)
    is_foreign = stack.effects is not None
    if composition is not None and (
        by_user or written.found or not stack.composed or (words and is_foreign)
    ):
        read = partial(
            foreign_files,
            composition,
            words=words,
            before=stack.words,
            place=place,
            chosen=_near(stack),
        )
        found = ErrorReport()
        if foreign := read(written, report=found):
            # References may name what the rules of the format decide.
            written = written.with_defaults(foreign.values())
            if written.found:
                found = ErrorReport()
                foreign = read(written, report=found)
        report.errors += found.errors
        stack = _with_files(stack, composition, written, foreign, below, above, report)
    stack = with_references_anew(stack, written)
    layer = _word_layer(stack, words, written, foreign, place=place, report=report)
    report.errors += check_dropped_phases(layer, stack)
    laid = {**stack.words, **{key: Entry(value, place) for key, value in words.items()}}
    return replace(stack.above(layer), written=written.values, words=laid)


def _near(stack: Stack) -> frozenset[str]:
    """Returns the choices whose files are nearer to the user than a recipe.

    Without a recipe, a run of another system's launcher is the recipe.
    """
    if stack.primary.is_root:
        return stack.chosen
    return frozenset(one for one in stack.chosen if one.lstrip("+") != WRAPPER)


def _with_files(
    stack: Stack,
    composition: Composition,
    written: Written,
    foreign: ForeignFiles | None,
    below: Layer,
    above: Layer,
    report: ErrorReport,
) -> Stack:
    indexes: Collection[int] = () if foreign is None else foreign.indexes
    files = file_layers(
        composition,
        written,
        chosen=_near(stack),
        sweeps=stack.primary.sweeps,
        leaves_out=indexes,
        report=report,
    )
    report.errors += missing(composition, written, indexes)
    notes = [*notes_on_hydra(composition, stack.primary.name, indexes)]
    if foreign is not None:
        last = max(indexes)
        files[last + 1 : last + 1] = foreign.layers
        notes += foreign.effects.notes()
    effects = None if foreign is None else foreign.effects
    return replace(stack, composed=(below, *files, above), notes=tuple(notes), effects=effects)


def relaid(stack: Stack) -> Stack:
    """Resolves references again after a layer was added. Does nothing without references."""
    if not any(map(has_reference, stack.written.values())):
        return stack
    return _laid(stack, {}, place=COMMAND_LINE, report=ErrorReport())


def _set_by(composition: Composition, choices: Collection[str]) -> set[str]:
    """Returns the keys that the files of some choices set, also in our spelling."""
    keys = {key for one in composition.files if one.choice in choices for key in one.leaves}
    return keys | {SPELLINGS.get(key, key) for key in keys}


def _with_recipe_hidden(stack: Stack, composition: Composition, by_user: Collection[str]) -> Stack:
    """Returns layers without what a recipe sets in Python and a file sets that the user chooses."""
    sets = _set_by(composition, by_user)

    def kept(layer: Layer) -> Layer:
        entries = {k: one for k, one in layer.entries.items() if k not in sets}
        return replace(layer, entries=entries)

    overrides = tuple(
        kept(one) if one.precedence in (Precedence.RECIPE, Precedence.EDITED) else one
        for one in stack.overrides
    )
    return replace(stack, overrides=overrides)


def _recipe_layers(stack: Stack, composition: Composition | None) -> tuple[Layer, Layer]:
    """Returns the layers of a recipe's values, below the files and above them.

    A value goes below the files if a later choice is a group whose file also sets it, or drops its
    phase.
    """
    above: dict[str, Entry] = {}
    below: dict[str, Entry] = {}
    for key, choice in stack.choices.items():
        if isinstance(choice, Entry):
            above[key] = choice
        elif composition is not None:
            sets = _set_by(composition, [key])
            hidden = [leaf for leaf in above if leaf in sets or is_dropped(leaf, sets)]
            below |= {leaf: above.pop(leaf) for leaf in hidden}
    first, last = (Layer("recipe", Precedence.RECIPE, one) for one in (below, above))
    return first, last


def _word_layer(
    stack: Stack,
    words: Mapping[str, Any],
    written: Written,
    foreign: ForeignFiles | None,
    *,
    place: str,
    report: ErrorReport,
) -> Layer:
    values: dict[str, Any] = {}
    deleted: dict[str, Entry] = {}
    for key, value in words.items():
        if foreign is not None and key in foreign.deleted:
            continue
        if key.startswith("~"):
            with report.noting(), placed(f"{key} ({place})"):
                name = key[1:]
                if name not in words or name not in settings():
                    _check_deleted(stack, name, value)
                deleted[name] = Entry(settings()[name].default, f"{place}: {key}")
        elif written.is_variable(key) or (
            foreign is not None and find_setting(key) is None and not is_phase(key)
        ):
            continue
        elif not has_reference(value):
            merged = written.values.get(key)
            values[key] = merged if isinstance(value, dict) and merged else value
        else:
            found = written.values_of(key)
            if len(found) > 1 and not any(map(find_setting, found)):
                values[key] = value  # so that a section without settings is one error
                continue
            for name, each in found.items():
                if isinstance(each, Unresolved):
                    with report.noting(), placed(f"{key}={shown(value)} ({place})"):
                        raise each.error
                else:
                    values[name] = Entry(each, place, reference=value)
    layer = Layer.of(place, Precedence.USER, values, report=report)
    by_theirs = {} if foreign is None else foreign.by_words
    if foreign is not None:
        report.errors += check_contradictions(foreign, layer, words)
    order = list(words)
    last = {
        key: one
        for key, one in deleted.items()
        if key not in words or order.index(f"~{key}") > order.index(key)
    }
    return Layer(place, Precedence.USER, {**by_theirs, **deleted, **layer.entries, **last})


def _check_deleted(stack: Stack, key: str, value: Any) -> None:
    """Checks that `~KEY` or `~KEY=VALUE` deletes a value that is there.

    Raises:
        UsageError: nobody sets the key, or it has another value.
    """
    why = ""
    if key not in settings():
        why = "it is not a setting"
    elif stack.precedence(key) is Precedence.SCHEMA:
        why = "nobody sets it"
    if why:
        raise UsageError(
            f"~{key} deletes nothing: {why}", keys=(key,), remedy="the same words without it"
        )
    now = stack.entry(key).value
    if value is not None and typed(key, value) != now:
        raise UsageError(
            f"~{key}={shown(value)} deletes nothing: {key} is {shown(now)}",
            keys=(key,),
            remedy=f"~{key}={shown(now)}",
        )
