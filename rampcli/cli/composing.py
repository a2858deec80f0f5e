"""Turns the words of a command line into a resolved configuration. All errors are in one report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rampcli import llm
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.batch.throughput import EFFICIENCY_KEY, RESTART_KEY, efficiency_text
from rampcli.checkpoint.starting_weights import with_model_of_folder
from rampcli.cli.base import Base
from rampcli.config.compose import (
    apply_overrides,
    further_keys,
    primary_stack,
    relaid,
    rl_word,
    with_own_name,
)
from rampcli.config.groups import folders, group_names
from rampcli.config.layers import (
    COMMAND_LINE,
    PYTHON,
    Layer,
    Precedence,
    Stack,
    edited_stack,
    sources_named,
    stack_of,
)
from rampcli.config.phases import phases_named, refuse_rl
from rampcli.config.reading import group_of, join_split_lists, names_search_path, parse
from rampcli.config.sweeps import Combination, joined_words, options_of
from rampcli.errors import Assignments, ErrorReport, UsageError, UsageErrors
from rampcli.launch.files import read_files
from rampcli.planning.batch_rules import retunings_of
from rampcli.planning.resolve import resolve
from rampcli.planning.retuning import RETUNE
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.settings.by_key import find_setting, leaves
from rampcli.settings.checks import check_name
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import phase_key
from rampcli.words.hydra import name_folder_of_sweep
from rampcli.words.rl import RL_COMMAND, bare_words, expand_words


def compose_rl(base: Base, words: Sequence[str]) -> Resolved:
    """Composes a run of `rampcli rl`, which resumes from its checkpoint.

    Args:
        base: what the words are laid over.
        words: as in `compose_words`, and the words of MaxText's documentation.

    Raises:
        UsageError: all errors together.
    """
    report = ErrorReport()
    rl_words = words_of_rl(base, words)
    stack = lay_over(base, expand_words(words), report=report, rl_words=rl_words)
    if stack.entry(GENERATIONS_KEY).value is None:
        error = UsageError(
            f"{RL_COMMAND} generates responses, and {GENERATIONS_KEY} is null",
            keys=(GENERATIONS_KEY,),
            remedy="rl=grpo num_generations=16, or rampcli pretrain",
        )
        stack.name_sources(error)
        report.errors.append(error)
        report.close()
    try:
        return resolve_from_checkpoint(stack, report)
    except UsageError as error:
        typed = bare_words(words)
        for one in error.errors if isinstance(error, UsageErrors) else (error,):
            one.remedies = tuple(
                each.renamed(typed) if isinstance(each, Assignments) else each
                for each in one.remedies
            )
        raise


def words_of_rl(base: Base, words: Sequence[str]) -> list[str]:
    """Returns the words that make a run one of reinforcement learning: none if its file does."""
    recipe = (base.factory or "").partition("(")[0].strip()
    if base.factory is None and base.has_start(words):
        own = apply_overrides(primary_stack(base.primary()), [], report=ErrorReport())
        if own.entry(GENERATIONS_KEY).value is not None:
            return []
    return [rl_word(recipe, config_dir=base.config_dir)]


def compose_words(base: Base, words: Sequence[str], *, resumes: bool = False) -> Resolved:
    """Lays words over a recipe or a primary file, checks the result and plans its run.

    Args:
        base: what the words are laid over.
        words: `KEY=VALUE` and `GROUP=OPTION`.
        resumes: whether the run resumes from its checkpoint. Stages before it are not checked.

    Raises:
        UsageError: all errors together.
    """
    report = ErrorReport()
    stack = lay_over(base, words, report=report)
    return (
        resolve_from_checkpoint(stack, report)
        if resumes
        else resolve(stack, read_files=read_files, report=report)
    )


def compose_beside_recipe(
    base: Base,
    words: Sequence[str],
    *,
    retunes: bool,
    resumes: bool = False,
) -> Resolved:
    """Composes as `compose_words`, and compares the batch with the recipe's.

    Args:
        base: as in `compose_words`.
        words: as in `compose_words`.
        retunes: whether settings that are tied to the batch follow it, unless the user set them.
        resumes: as in `compose_words`.

    Raises:
        UsageError: all errors together; or there is nothing that the settings could follow.
    """
    resolved = compose_words(base, words, resumes=resumes)
    if retunes:
        refuse_rl(
            resolved.config,
            f"the rules of {RETUNE} are those of pretraining, and this is a run of reinforcement"
            " learning",
            remedy="rl=none",
        )
    try:
        recipe = _start(base)
        if isinstance(recipe, Stack):
            starts = [one for one in words if base.is_start(one) or names_search_path(one)]
            recipe = apply_overrides(recipe, starts, config_dir=base.config_dir).config()
        retunings = retunings_of(resolved, recipe)
    except UsageError as error:
        if retunes:
            raise UsageError(
                f"{RETUNE} compares with the batch of the recipe, which has none: {error.message}",
                keys=error.keys,
                set_by=error.set_by,
                remedy="a recipe with a batch of its own",
            ) from error
        return resolved  # The recipe has no batch of its own.
    if not retunes:
        return replace(resolved, retunings=retunings)
    if not retunings:
        unchanged = f"{RETUNE} changes nothing: the batch is the recipe's"
        return replace(resolved, notes=(*resolved.notes, unchanged))
    words = [word for one in retunings for word in one.words()]
    stack = apply_overrides(resolved.config, words, place=RETUNE)
    progress = _consumed_samples if resumes else lambda _: 0
    retuned = resolve(stack, consumed_samples_in=progress, read_files=resolved.files_of)
    return replace(retuned, retunings=retunings_of(retuned, recipe))


def keys_of_files(base: Base, words: Sequence[str]) -> set[str]:
    """Returns the keys besides settings that words may set: those that files have or refer to.

    Args:
        base: as in `compose_words`.
        words: those of the command, of which some may list several values. Files are composed with
            each option of a group, and only if a word has a key that is not a setting.
    """
    groups = group_names(base.folders(words))
    choosing: list[list[str]] = [[word for word in words if names_search_path(word)]]
    has_other_keys = False
    for word in words:
        with ErrorReport().noting():
            if (group := group_of(word, groups)) is not None:
                choosing.append(options_of(word, group, base.folders(words)))
            elif find_setting(word.lstrip("+~").partition("=")[0]) is None:
                has_other_keys = True
    found: set[str] = set()
    search_path, *options = choosing
    for number in range(max(map(len, options), default=1) if has_other_keys else 0):
        chosen = [one[min(number, len(one) - 1)] for one in options]
        with ErrorReport().noting():
            found |= further_keys(lay_over(base, [*search_path, *chosen], report=ErrorReport()))
    return found


def check_runs_differ(
    base: Base, words: Sequence[str], runs: Sequence[tuple[Mapping[str, str], Resolved]]
) -> None:
    """Checks that each varied key that is not a setting changes the run.

    Args:
        base: what the words of the runs are laid over.
        words: those of the command.
        runs: the values that vary, by key, and the run that they make.

    Raises:
        UsageError: two runs differ only in such keys and have the same settings.
    """
    groups = group_names(base.folders(words))
    varied = dict.fromkeys(key for values, _ in runs for key in values)
    keys = [
        key for key in varied if group_of(f"{key}=", groups) is None and find_setting(key) is None
    ]
    seen: dict[str, tuple[Mapping[str, str], Resolved]] = {}
    for values, resolved in runs:
        others = [value for key, value in values.items() if key not in keys]
        settled = [pair for pair in leaves(resolved.config) if pair[0] not in ("name", "run_dir")]
        twin_values, twin = seen.setdefault(repr((others, settled)), (values, resolved))
        if keys and twin is not resolved:
            differing = [key for key in keys if values[key] != twin_values[key]]
            reasons = dict.fromkeys(_without_effect(key, twin, resolved) for key in differing)
            raise UsageError(
                f"{joined_words(twin_values)} and {joined_words(values)} give the same plan:"
                f" {'; '.join(reasons)}",
                keys=differing,
                remedy="a single value",
            )


def _without_effect(key: str, *runs: Resolved) -> str:
    """Returns why a key does not make runs differ."""
    effects = [one for run in runs if (one := stack_of(run.phases[0].config).effects) is not None]
    refused = (f"{key}: {one.unsupported[key]}" for one in effects if key in one.unsupported)
    return next(refused, f"{key} changes no setting of the run")


def folder_of_sweep(base: Base, words: Sequence[str]) -> Path:
    """Returns the folder of a sweep: `run_dir`, or `runs/NAME_sweep`.

    Args:
        base: as in `compose_words`.
        words: those of the command. Settings that vary do not name the folder.

    Raises:
        UsageError: there is no such recipe, or its name cannot name a folder.
    """
    _start(base)
    report = ErrorReport()  # errors in words are reported when the runs are composed
    config = lay_over(base, words, report=report, sweeps=True).config()
    ErrorReport(check_name(config)).close()
    return Path(config.run_dir or f"runs/{config.name}_sweep")


def compose_combination(base: Base, combination: Combination, folder: Path) -> Resolved:
    """Composes a run of a sweep, which resumes from its checkpoint.

    The run and its directory, which is in the folder of the sweep, are named by its values.

    Raises:
        UsageError: all errors together.
    """
    report = ErrorReport()
    stack = lay_over(base, combination.words, report=report, sweeps=True)
    names = {"name": combination.folder, "run_dir": str(folder / combination.folder)}
    layer = Layer.of("sweep", Precedence.USER, names, report=report)
    return resolve_from_checkpoint(stack.above(layer), report)


def _start(base: Base) -> Config | Stack:
    """Returns a recipe, or the layers of a primary file, which are composed with the words.

    Raises:
        UsageError: the recipe or the primary file does not exist, or the recipe fails.
    """
    primary = base.primary()
    if base.factory is not None and primary.is_root:
        return llm.from_factory(base.factory)
    return primary_stack(primary)


def lay_over(
    base: Base,
    words: Sequence[str],
    *,
    report: ErrorReport,
    rl_words: Sequence[str] = (),
    sweeps: bool = False,
) -> Stack:
    """Returns the layers of a base with the words of `rampcli rl`, if any, and those typed.

    Args:
        base: what the words are laid over.
        words: those of the command line.
        report: receives the errors in words.
        rl_words: words that make a run one of reinforcement learning.
        sweeps: whether the run is one of a sweep.

    Raises:
        UsageError: there is no such recipe or primary file.
    """
    joined = join_split_lists(words, report=report)
    start: Config | Stack | None = None
    with report.noting():
        if not base.has_start(joined):
            raise UsageError(
                "nothing says what to run: --factory NAME",
                remedy="--factory llama3_tiny; rampcli recipes lists all recipes",
            )
        start = _start(base)
    if start is None:
        among = folders(base.config_dir, base.config_path)
        parse(joined, groups=group_names(among), place=COMMAND_LINE, report=report)
        report.close()
    assert start is not None
    if sweeps:
        stack = (
            start
            if isinstance(start, Stack)
            else edited_stack(start, "recipe", Precedence.EDITED, report=report)
        )
        start = replace(stack, primary=replace(stack.primary, sweeps=True))
    config_dir = base.config_dir
    if rl_words:
        start = apply_overrides(
            start, rl_words, config_dir=config_dir, place=RL_COMMAND, report=report
        )
    stack = apply_overrides(start, joined, config_dir=config_dir, report=report)
    for error in report.errors if sweeps else ():
        name_folder_of_sweep(error)
    return relaid(with_own_name(with_model_of_folder(stack, report=report)))


def plan(config: Config) -> Resolved:
    """Checks a configuration and plans its run, as `rampcli plan` does.

    Args:
        config: from a recipe, `compose` or `from_hydra`. It is not modified.

    Raises:
        UsageError: all errors together, each with its keys and where their values come from.
    """
    report = ErrorReport()
    stack = edited_stack(config, PYTHON, Precedence.USER, report=report)
    stack = relaid(with_model_of_folder(stack, report=report))
    return resolve(stack, read_files=read_files, report=report)


def with_measured(resolved: Resolved, paths: Sequence[Path]) -> Resolved:
    """Returns the plan with the throughput of earlier runs, and with the time of their restarts.

    Each phase has the throughput of those that computed as it does. A note names a phase without
    any. `rampup.restart_s` is left as it is if it was typed.
    """
    from rampcli.runs.measured import Measured, read_measured

    phases = {phase.plan.name: phase.config for phase in resolved.phases}
    with sources_named(resolved.config):
        measured = read_measured(paths, phases)
    unlike = ", ".join(dict.fromkeys(word for found in measured for word in found.unlike))

    def place(found: Measured, name: str | None = None) -> str:
        """Returns where rates come from, with phases that have other names than the plan's."""
        named = {path: names for path, names in found.phases.items() if names != (name,)}
        places = (
            f"{path} ({phases_named(named[path])})" if path in named else str(path)
            for path in paths
        )
        return f"measured in {', '.join(places)}{unlike and ' with '}{unlike}"

    stack, notes = stack_of(resolved.config), list[str]()
    for name, found in zip(phases, measured, strict=True):
        if found.points:
            word = f"{phase_key(name, EFFICIENCY_KEY)}='{efficiency_text(found.points)}'"
            stack = apply_overrides(stack, [word], place=place(found, name))
        elif found.misfit is not None:
            notes.append(f"phase {name} was not measured: {found.misfit}")
        else:
            notes.append(f"phase {name} was not measured: it was too short")
    if (restart_s := measured[0].restart_s) is not None and not stack.is_of_user(RESTART_KEY):
        places = f"measured in {', '.join(map(str, paths))}"
        stack = apply_overrides(stack, [f"{RESTART_KEY}={restart_s}"], place=places)
    timed = resolve(stack, read_files=resolved.files_of)
    return replace(timed, notes=(*timed.notes, *notes), retunings=resolved.retunings)


def resolve_from_checkpoint(stack: Stack, report: ErrorReport) -> Resolved:
    """Resolves the layers of a run that resumes. Stages before its checkpoint are not checked."""
    return resolve(
        stack,
        consumed_samples_in=_consumed_samples,
        read_files=read_files,
        report=report,
    )


def _consumed_samples(path: Path) -> int:
    return consumed_samples(RunDirectory(path))
