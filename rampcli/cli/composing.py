"""Turns the words of a command line into a resolved configuration. All errors are in one report."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rampcli import llm
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.checkpoint.starting_weights import with_model_of_folder
from rampcli.config.checks.run import check_name
from rampcli.config.compose import apply_overrides, rl_word, with_own_name
from rampcli.config.groups import group_names
from rampcli.config.layers import COMMAND_LINE, Layer, Precedence, Stack
from rampcli.config.phases import refuse_phases
from rampcli.config.reading import join_split_lists, parse
from rampcli.config.rl import refuse_rl
from rampcli.config.sweeps import Combination
from rampcli.errors import Assignments, Report, UsageError, UsageErrors
from rampcli.launch.files import read_files
from rampcli.planning.batch_rules import retuning_of
from rampcli.planning.resolve import resolve
from rampcli.planning.retuning import RETUNE
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples
from rampcli.words.rl import RL_COMMAND, bare_words, expand_words


def compose_rl(factory: str, words: Sequence[str], *, config_dir: Path | None) -> Resolved:
    """Composes a run of `rampcli rl`, which resumes from its checkpoint.

    Args:
        factory: as in `compose_words`.
        words: as in `compose_words`, and the words of MaxText's documentation.
        config_dir: a folder of further group options.

    Raises:
        UsageError: all errors together.
    """
    report = Report()
    rl_words = [rl_word(factory.partition("(")[0].strip(), config_dir=config_dir)]
    stack = _lay_over(
        factory, expand_words(words), config_dir=config_dir, report=report, rl_words=rl_words
    )
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


def compose_words(
    factory: str, words: Sequence[str], *, config_dir: Path | None, resumes: bool = False
) -> Resolved:
    """Lays words over a recipe, checks the result and plans its run.

    Args:
        factory: as it is typed, `llama3_8b` or `'llama3_8b(num_nodes=2)'`.
        words: `KEY=VALUE` and `GROUP=OPTION`.
        config_dir: a folder of further group options.
        resumes: whether the run resumes from its checkpoint. Stages before it are not checked.

    Raises:
        UsageError: all errors together.
    """
    report = Report()
    stack = _lay_over(factory, words, config_dir=config_dir, report=report)
    return (
        resolve_from_checkpoint(stack, report)
        if resumes
        else resolve(stack, read_files=read_files, report=report)
    )


def compose_beside_recipe(
    factory: str,
    words: Sequence[str],
    *,
    config_dir: Path | None,
    retunes: bool,
    resumes: bool = False,
) -> Resolved:
    """Composes as `compose_words`, and compares the batch with the recipe's.

    Args:
        factory: as in `compose_words`.
        words: as in `compose_words`.
        config_dir: a folder of further group options.
        retunes: whether settings that are tied to the batch follow it, unless the user set them.
        resumes: as in `compose_words`.

    Raises:
        UsageError: all errors together; or there is nothing that the settings could follow.
    """
    resolved = compose_words(factory, words, config_dir=config_dir, resumes=resumes)
    if retunes:
        refuse_rl(
            resolved.config,
            f"the rules of {RETUNE} are those of pretraining, and this is a run of reinforcement"
            " learning",
            remedy="rl=none",
        )
        refuse_phases(resolved.config, RETUNE)
    if resolved.phases:
        return resolved  # its batches have the lengths and schedules of its phases
    recipe = llm.from_factory(factory)
    try:
        retuning = retuning_of(resolved, recipe)
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
        return replace(resolved, retuning=retuning)
    if retuning is None:
        unchanged = f"{RETUNE} changes nothing: the batch is the recipe's"
        return replace(resolved, notes=(*resolved.notes, unchanged))
    stack = apply_overrides(resolved.config, retuning.words(), place=RETUNE)
    progress = _consumed_samples if resumes else lambda _: 0
    retuned = resolve(stack, consumed_samples_in=progress, read_files=resolved.files_of)
    return replace(retuned, retuning=retuning_of(retuned, recipe))


def folder_of_sweep(factory: str, words: Sequence[str], *, config_dir: Path | None) -> Path:
    """Returns the folder of a sweep: `run_dir`, or `runs/NAME_sweep`.

    Args:
        factory: as in `compose_words`.
        words: those of the command. Settings that vary do not name the folder.
        config_dir: a folder of further group options.

    Raises:
        UsageError: there is no such recipe, or its name cannot name a folder.
    """
    llm.from_factory(factory)
    report = Report()  # errors in words are reported when the runs are composed
    config = _lay_over(factory, words, config_dir=config_dir, report=report).config()
    Report(check_name(config)).close()
    return Path(config.run_dir or f"runs/{config.name}_sweep")


def compose_combination(
    factory: str, combination: Combination, folder: Path, *, config_dir: Path | None
) -> Resolved:
    """Composes a run of a sweep, which resumes from its checkpoint.

    The run and its directory, which is in the folder of the sweep, are named by its values.

    Raises:
        UsageError: all errors together.
    """
    report = Report()
    stack = _lay_over(factory, combination.words, config_dir=config_dir, report=report)
    names = {"name": combination.folder, "run_dir": str(folder / combination.folder)}
    layer = Layer.of("sweep", Precedence.USER, names, report=report)
    return resolve_from_checkpoint(stack.above(layer), report)


def _lay_over(
    factory: str,
    words: Sequence[str],
    *,
    config_dir: Path | None,
    report: Report,
    rl_words: Sequence[str] = (),
) -> Stack:
    """Returns the layers of a recipe with the words of `rampcli rl`, if any, and those typed."""
    joined = join_split_lists(words, report=report)
    config = None
    with report.noting():
        config = llm.from_factory(factory)
    if config is None:
        parse(joined, groups=group_names(config_dir), place=COMMAND_LINE, report=report)
        report.close()
    assert config is not None
    if rl_words:
        config = apply_overrides(
            config, rl_words, config_dir=config_dir, place=RL_COMMAND, report=report
        ).config()
    stack = apply_overrides(config, joined, config_dir=config_dir, report=report)
    return with_own_name(with_model_of_folder(stack, report=report))


def resolve_from_checkpoint(stack: Stack, report: Report) -> Resolved:
    """Resolves the layers of a run that resumes. Stages before its checkpoint are not checked."""
    return resolve(
        stack,
        consumed_samples_in=_consumed_samples,
        read_files=read_files,
        report=report,
    )


def _consumed_samples(path: Path) -> int:
    return consumed_samples(RunDirectory(path))
