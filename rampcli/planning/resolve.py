"""The way from the layers of a configuration to the plan of its run, step by step.

1. `translate`: words whose meaning depends on other settings become our keys. Spellings of a single
   key became ours when the layers were made (`config.layers.Layer.of`).
2. `without_alternatives`: of settings that say one thing, the nearest to the user stays.
3. `with_extensions`: the settings of extensions get their defaults.
4. `_checked`: the layers become one typed configuration, and its settings are checked.
5. `_with_files`: settings that files decide get their numbers.
6. `_planned`: the configuration becomes a plan.
7. `with_choices`: the plan decides when gradients are reduced and whether layers are compiled,
   unless that is set.

Each step takes what the one before returns and changes nothing. Its errors go into a report, and
the next step goes on without what is wrong, so that a user sees all errors at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.extension_settings import with_extensions
from rampcli.config.file_facts import (
    BYTES,
    FileFacts,
    ReadFiles,
    padded,
    with_file_facts,
    without_files,
)
from rampcli.config.layers import PYTHON, Entry, Precedence, Stack, edited_stack
from rampcli.config.phases import (
    PhaseErrors,
    completed_run,
    phase_entries,
    phase_stack,
    run_stack,
    without_farther_ends,
)
from rampcli.config.translate import (
    check_named_before,
    translate,
    with_decided_references,
    without_alternatives,
)
from rampcli.config.values import put
from rampcli.errors import ErrorReport, Remedy, UsageError, set_to
from rampcli.planning.choices import with_choices
from rampcli.planning.run_notes import run_notes
from rampcli.planning.run_plan import Resolved, run_dir_of, run_plan
from rampcli.settings.by_key import settings
from rampcli.settings.checks import CHECKS, CHECKS_OF_WORDS, check_range, check_ranges
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig
from rampcli.settings.parallel import ParallelConfig, check_tensor
from rampcli.settings.phase_keys import phase_key


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """A complete and checked configuration, before it is planned.

    Attributes:
        stack: its layers in canonical keys, before files were read.
        facts: what its files have decided.
        notes: what a user may not expect of its words and files.
        batch_is_known: whether its words for the batch could be read.
    """

    config: Config
    stack: Stack
    facts: FileFacts
    notes: tuple[str, ...]
    batch_is_known: bool


def resolve(
    config: Config | Stack,
    *,
    consumed_samples_in: Callable[[Path], int] = lambda _: 0,
    read_files: ReadFiles = without_files,
    report: ErrorReport | None = None,
) -> Resolved:
    """Checks a configuration and plans its run. `config` itself is not changed.

    Args:
        config: from a recipe, or the layers that `apply_overrides` returns.
        consumed_samples_in: returns the progress of a run directory, in samples. Stages before it
            are not checked.
        read_files: returns what the files of the run decide. It is called if nothing else is wrong.
        report: errors found earlier; they are raised together with those found here.

    Raises:
        UsageError: all errors together, each with its keys and where their values come from.
    """
    report = report or ErrorReport()
    stack = (
        config
        if isinstance(config, Stack)
        else edited_stack(config, PYTHON, Precedence.USER, report=report)
    )
    try:
        stack = with_decided_references(stack)
    except UsageError as circle:
        report.errors.append(circle)
        report.close()
    entries, run = phase_entries(stack), stack
    if entries:
        run = without_farther_ends(run_stack(stack), stack)
    completed = _completed_phases(run, entries, read_files, report)
    with _new_errors(report, stack):
        _check_tokenizers(completed)
    if entries:  # phases are planned together, if each of them could be
        report.close()
    settled = _settled(run) if entries else run
    settings = {name: one.config for name, one in completed.items()}
    planned = None
    if all(one.batch_is_known for one in completed.values()):
        planned = _planned(completed_run(settled, entries, settings), consumed_samples_in, report)
    first = next(iter(completed.values()))
    for error in report.errors:
        error.remedies = tuple(_own_value(remedy, first.stack) for remedy in error.remedies)
    report.close()
    assert planned is not None
    phases = tuple(
        with_choices(replace(phase, files=completed[phase.plan.name].facts))
        for phase in planned.phases
    )
    settings |= {phase.plan.name: phase.config for phase in phases}
    planned = replace(planned, config=completed_run(settled, entries, settings), phases=phases)
    own = {name: one.notes for name, one in completed.items()}
    return replace(planned, notes=tuple(dict.fromkeys(run_notes(planned, own))))


def _completed_phases(
    run: Stack,
    entries: Mapping[str, Mapping[str, Entry]],
    read_files: ReadFiles,
    report: ErrorReport,
) -> dict[str | None, Completed]:
    """Returns the complete settings of each phase, by name. The run is one without a name.

    Args:
        run: the layers without what the phases set.
        entries: what each phase sets, as `phase_entries` returns it.
        report: receives the errors. Each says which phase it is about, unless it is about all.
    """
    errors, completed = PhaseErrors(), dict[str | None, Completed]()
    reports = {name: ErrorReport(report.errors) for name in (*entries,) or (None,)}
    stacks = {
        name: run if name is None else phase_stack(run, name, entries[name], report=found)
        for name, found in reports.items()
    }
    ranks = lcm(
        *(max(1, each.entry(ParallelConfig.tensor_parallel_size).value) for each in stacks.values())
    )
    for name, found in reports.items():
        one = complete(stacks[name], read_files, found, tensor=ranks if entries else None)
        new = found.errors[len(report.errors) :]
        for error in new:
            error.remedies = tuple(_own_value(each, one.stack) for each in error.remedies)
        errors.add(name, new)
        completed[name] = one
    errors.report_to(report, phases=len(completed))
    return completed


def _check_tokenizers(phases: Mapping[str | None, Completed]) -> None:
    """Checks that the corpora of all phases have one tokenizer, as far as it is known.

    Raises:
        UsageError: those of two phases differ.
    """
    found = dict[str, str | None]()
    for name, one in phases.items():
        if one.facts.tokenizer is not None:
            found.setdefault(one.facts.tokenizer, name)
    if len(found) < 2:
        return
    first, second, *_ = found.values()
    is_chars = any(one.config.data.tokenizer == "chars" for one in phases.values())
    raise UsageError(
        f"the corpora of phases {first} and {second} have different tokenizers, and a token stands"
        " for the same text in the whole run",
        keys=(DataConfig.tokenizer, phase_key(second, DataConfig.path)),
        remedy=set_to(DataConfig.tokenizer, "bytes")
        if is_chars
        else "corpora that `rampcli data build` has encoded with one tokenizer",
    )


def _settled(run: Stack) -> Stack:
    """Returns the layers of a run in canonical keys, although it is planned by phases alone."""
    with suppress(UsageError):  # words may need what only phases set, where errors are found, too
        run = translate(run)[0]
    return with_extensions(without_alternatives(run), ErrorReport())


def complete(
    stack: Stack, read_files: ReadFiles, report: ErrorReport, *, tensor: int | None = None
) -> Completed:
    """Takes the steps from the layers of a configuration to its complete and checked settings.

    Args:
        report: receives the errors.
        tensor: as `with_file_facts` takes it.
    """
    translation = None
    with _new_errors(report, stack):
        translation = translate(stack)
    stack, batch_notes = translation or (stack, ())
    stack = without_alternatives(stack)
    stack = with_extensions(stack, report)
    checked = _checked(stack, report)
    config, facts, file_notes = _with_files(checked, read_files, report, tensor=tensor)
    return Completed(
        config=config,
        stack=stack,
        facts=facts,
        notes=(*stack.notes, *batch_notes, *file_notes),
        batch_is_known=translation is not None,
    )


def _own_value(remedy: Remedy, stack: Stack) -> Remedy:
    """Returns the value that a setting has without the user's words, in place of an example.

    The run can be planned with it, unless it is wrong itself.
    """
    if isinstance(remedy, str) or not remedy.is_example:
        return remedy
    (key,) = remedy.values
    own, setting = stack.below_user(key), settings().get(key)
    if own is None or setting is None or any(check_range(setting, own.value)):
        return remedy
    return set_to(key, own.value)


def _checked(stack: Stack, report: ErrorReport) -> Config:
    """Returns the merged settings, and reports those out of range or contradicting each other.

    A setting out of range has its default in the further checks.
    """
    config = stack.config()
    ranges = [*check_ranges(config)]
    _add_new(ranges, report, stack)
    for error in ranges:
        put(config, error.keys[0], settings()[error.keys[0]].default)
    for check in CHECKS:
        _add_new(check(config), report, stack)
    for check_words in CHECKS_OF_WORDS:
        _add_new(check_words(config, config.stack.is_of_user), report, stack)
    return config


def _with_files(
    config: Config, read_files: ReadFiles, report: ErrorReport, *, tensor: int | None = None
) -> tuple[Config, FileFacts, tuple[str, ...]]:
    """Returns the configuration with numbers for what its files decide, these facts, and notes.

    If something is wrong, no file is read, and a vocabulary that fits all ranks stands for an
    unknown one, so that the errors of the plan are found too.
    """
    facts = FileFacts()
    notes: tuple[str, ...] = ()
    if not report.errors:
        with _new_errors(report, config.stack):
            facts = read_files(config)
            stack, notes = with_file_facts(config, facts, tensor=tensor)
            check_named_before(stack, config.stack)
            config = stack.config()
            ErrorReport(check_tensor(config)).close()
    if report.errors and config.model.vocab_size is None:
        ranks = max(1, config.parallel.tensor_parallel_size)
        put(config, ModelConfig.vocab_size, padded(BYTES, tensor=ranks))
    return config, facts, notes


def _planned(
    config: Config, consumed_samples_in: Callable[[Path], int], report: ErrorReport
) -> Resolved | None:
    """Returns the configuration with its plan, or None if it cannot be planned."""
    # Without a valid number of generations, it is unknown what a batch holds.
    if any(GENERATIONS_KEY in error.keys[:1] for error in report.errors):
        return None
    with _new_errors(report, config.stack):
        names_wrong = any({"name", "run_dir"} & set(error.keys) for error in report.errors)
        consumed_samples = 0 if names_wrong else consumed_samples_in(run_dir_of(config))
        return run_plan(config, consumed_samples=consumed_samples)
    return None


@contextmanager
def _new_errors(report: ErrorReport, stack: Stack) -> Iterator[None]:
    """Reports the errors of a block, except those that follow from keys known to be wrong."""
    found = ErrorReport()
    with found.noting():
        yield
    _add_new(found.errors, report, stack)


def _add_new(errors: Iterable[UsageError], report: ErrorReport, stack: Stack) -> None:
    """Reports errors, except those that follow from keys known to be wrong."""
    wrong = {key for error in report.errors for key in error.keys}
    for error in errors:
        if wrong.isdisjoint(error.keys):
            stack.name_sources(error)
            report.errors.append(error)
