"""Settles a configuration: folds spellings, checks every setting, and plans the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.alternatives import without_alternatives
from rampcli.config.architectures import export_notes
from rampcli.config.checks import CHECKS_OF_WORDS, check_ranges
from rampcli.config.checks.rl import rl_notes, unit_of
from rampcli.config.checks.splits import check_tensor
from rampcli.config.extension_settings import with_extensions
from rampcli.config.layers import PYTHON, Precedence, Stack, edited_stack
from rampcli.config.schema import Config
from rampcli.config.settings import settings
from rampcli.config.settling import (
    BYTES,
    VOCABULARY_KEY,
    FileFacts,
    ReadFiles,
    padded,
    settle,
    without_files,
)
from rampcli.config.translate import translate
from rampcli.config.values import put
from rampcli.errors import Report, shown
from rampcli.planning.run_plan import Resolved, run_dir_of, run_plan


def resolve(
    config: Config | Stack,
    *,
    consumed_samples_in: Callable[[Path], int] = lambda _: 0,
    read_files: ReadFiles = without_files,
    report: Report | None = None,
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
    report = report or Report()
    stack = (
        config
        if isinstance(config, Stack)
        else edited_stack(config, PYTHON, Precedence.USER, report=report)
    )
    translated = False
    notes: tuple[str, ...] = ()
    with _new_errors(report, stack):
        stack, notes = translate(stack)
        translated = True
    stack = without_alternatives(stack)
    settled = with_extensions(stack, report).config()
    _check(settled, report)
    settled, facts, notes = _settle(settled, notes, read_files, report)
    resolved = None
    # If MaxText's words did not fold, the batch is unknown and there is nothing to plan. Without a
    # valid number of generations, it is unknown what a batch holds.
    if translated and not any(GENERATIONS_KEY in error.keys[:1] for error in report.errors):
        with _new_errors(report, settled.stack):
            names_wrong = any({"name", "run_dir"} & set(error.keys) for error in report.errors)
            consumed_samples = 0 if names_wrong else consumed_samples_in(run_dir_of(settled))
            resolved = run_plan(settled, consumed_samples=consumed_samples)
    report.close()
    assert resolved is not None
    return replace(
        resolved,
        files=facts,
        notes=(
            *notes,
            *rl_notes(resolved.config),
            *export_notes(resolved.config),
            *_warmup_notes(resolved),
            *_profile_notes(resolved),
        ),
    )


def _settle(
    config: Config, notes: tuple[str, ...], read_files: ReadFiles, report: Report
) -> tuple[Config, FileFacts, tuple[str, ...]]:
    """Returns the configuration with numbers for what its files decide; those; the notes so far.

    If something is wrong, a size that fits all ranks stands for an unknown vocabulary, so that the
    errors of the plan are found too.
    """
    facts = FileFacts()
    if not report.errors:
        with _new_errors(report, config.stack):
            facts = read_files(config)
            stack, own = settle(config, facts)
            config, notes = stack.config(), (*notes, *own)
            check_tensor(config)
    if report.errors and config.model.vocab_size is None:
        ranks = max(1, config.parallel.tensor_parallel_size)
        put(config, VOCABULARY_KEY, padded(BYTES, tensor=ranks))
    return config, facts, notes


def _warmup_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the run ends before its learning rate has reached the peak."""
    optim, end = resolved.config.optim, resolved.plan.end_sample
    warmup_samples = resolved.learning_rate().warmup_samples
    if end is None or end >= warmup_samples:
        return []
    key = "optim.warmup_samples" if optim.warmup_steps is None else "optim.warmup_steps"
    return [
        f"the run ends after {end:,} {unit_of(resolved.config)}, within its warm-up of"
        f" {warmup_samples:,} ({key}): the learning rate does not reach optim.lr={optim.lr:g}"
    ]


def _profile_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the run ends before the steps that are to be profiled."""
    window, steps = resolved.config.profile.steps, resolved.plan.end_step
    if window is None or steps is None or window[0] <= steps:
        return []
    return [f"the run ends after {steps:,} steps, before profile.steps={shown(window)}"]


def _check(config: Config, report: Report) -> None:
    """Reports settings that are out of range or contradict each other.

    A setting out of range has its default in the further checks.
    """
    ranges = Report()
    with ranges.noting():
        check_ranges(config)
    with _new_errors(report, config.stack):
        ranges.close()
    for error in ranges.errors:
        put(config, error.keys[0], settings()[error.keys[0]].default)
    for check in CHECKS_OF_WORDS:
        with _new_errors(report, config.stack):
            check(config)


@contextmanager
def _new_errors(report: Report, stack: Stack) -> Iterator[None]:
    """Reports the errors of a block, except those that follow from keys known to be wrong."""
    wrong = {key for error in report.errors for key in error.keys}
    found = Report()
    with found.noting():
        yield
    for error in found.errors:
        stack.name_sources(error)
    report.errors += [error for error in found.errors if wrong.isdisjoint(error.keys)]
