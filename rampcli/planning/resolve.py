"""The way from the layers of a configuration to the plan of its run, step by step.

1. `translate`: words whose meaning depends on other settings become our keys. Spellings of a single
   key became ours when the layers were made (`config.layers.Layer.of`).
2. `without_alternatives`: of settings that say one thing, the nearest to the user stays.
3. `with_extensions`: the settings of extensions get their defaults.
4. `_checked`: the layers become one typed configuration, and its settings are checked.
5. `_with_files`: settings that files decide get their numbers.
6. `_planned`: the configuration becomes a plan.
7. `with_reduction` and `with_compilation`: the plan decides when gradients are reduced and whether
   layers are compiled, unless that is set.

Each step takes what the one before returns and changes nothing. Its errors go into a report, and
the next step goes on without what is wrong, so that a user sees all errors at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import lcm
from pathlib import Path

from rampcli.batch.node_policies import POLICY_KEY, BestPolicy, NemoPolicy
from rampcli.batch.pairs import GENERATIONS_KEY
from rampcli.config.extension_settings import with_extensions
from rampcli.config.file_facts import (
    BYTES,
    VOCABULARY_KEY,
    FileFacts,
    ReadFiles,
    padded,
    with_file_facts,
    without_files,
)
from rampcli.config.layers import PYTHON, Precedence, Stack, edited_stack, with_values
from rampcli.config.phases import (
    lines_by_phase,
    own_keys,
    phase_entries,
    phase_stack,
    run_stack,
)
from rampcli.config.translate import (
    check_named_before,
    translate,
    with_decided_references,
    without_alternatives,
)
from rampcli.config.values import put
from rampcli.errors import Remedy, Report, UsageError, set_to, shown
from rampcli.estimate.memory import micro_batch_part
from rampcli.models.parts import SMALLEST_FLEX_HEAD, mask_bytes
from rampcli.planning.compilation import is_on_gpus, with_compilation
from rampcli.planning.corpus_passes import pass_notes
from rampcli.planning.phase_notes import phase_notes
from rampcli.planning.phases import PhaseErrors, completed_run, without_farther_ends
from rampcli.planning.reduction import with_reduction
from rampcli.planning.run_plan import Resolved, run_dir_of, run_plan
from rampcli.planning.stage_memory import shorten_bytes
from rampcli.settings.architectures import export_notes
from rampcli.settings.by_key import settings
from rampcli.settings.checks import CHECKS, CHECKS_OF_WORDS, check_range, check_ranges
from rampcli.settings.config import Config
from rampcli.settings.parallel import check_tensor
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import is_rl, unit_of

NEMO, BEST = NemoPolicy.name, BestPolicy.name
TENSOR_KEY = "parallel.tensor_parallel_size"
MUCH = 0.1
"""Share of a run's time above which a node policy that saves it is named."""


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
    try:
        stack = with_decided_references(stack)
    except UsageError as circle:
        report.errors.append(circle)
        report.close()
    if phase_entries(stack):
        return resolve_phases(
            stack, consumed_samples_in=consumed_samples_in, read_files=read_files, report=report
        )
    completed = complete(stack, read_files, report)
    planned = None
    if completed.batch_is_known:
        planned = _planned(completed.config, consumed_samples_in, report)
    for error in report.errors:
        error.remedies = tuple(_own_value(remedy, completed.stack) for remedy in error.remedies)
    report.close()
    assert planned is not None
    planned = with_compilation(with_reduction(replace(planned, files=completed.facts)))
    notes = (*completed.notes, *_notes(planned), *_policy_notes(planned), *pass_notes(planned))
    return replace(planned, notes=notes)


def resolve_phases(
    stack: Stack,
    *,
    consumed_samples_in: Callable[[Path], int],
    read_files: ReadFiles,
    report: Report,
) -> Resolved:
    """Checks the settings of each phase of a run as `resolve` does, and plans all phases together.

    Raises:
        UsageError: all errors together; each says which phase it is about, unless it is about all.
    """
    entries, run = phase_entries(stack), run_stack(stack)
    run = without_farther_ends(run, stack)
    settled = _settled(run)
    errors = PhaseErrors()
    completed: dict[str, Completed] = {}
    reports = {name: Report() for name in entries}
    stacks = {
        name: phase_stack(run, name, own, report=reports[name]) for name, own in entries.items()
    }
    ranks = lcm(*(max(1, each.entry(TENSOR_KEY).value) for each in stacks.values()))
    for name, found in reports.items():
        one = complete(stacks[name], read_files, found, tensor=ranks)
        for error in found.errors:
            error.remedies = tuple(_own_value(each, one.stack) for each in error.remedies)
        errors.add(name, found.errors)
        completed[name] = one
    errors.report_to(report, phases=len(entries))
    report.close()
    config = completed_run(settled, entries, {name: one.config for name, one in completed.items()})
    consumed_samples = consumed_samples_in(run_dir_of(config))
    planned = run_plan(config, consumed_samples=consumed_samples)
    phases = tuple(
        with_compilation(with_reduction(replace(phase, files=completed[phase.name].facts)))
        for phase in planned.phases
    )
    chosen = {phase.name: phase.config for phase in phases}
    settings = {name: chosen.get(name, one.config) for name, one in completed.items()}
    planned = replace(planned, config=completed_run(settled, entries, settings), phases=phases)
    return replace(planned, notes=tuple(dict.fromkeys(_notes_of_phases(planned, completed))))


def _settled(run: Stack) -> Stack:
    """Returns the layers of a run in canonical keys, although it is planned by phases alone."""
    with suppress(UsageError):  # words may need what only phases set, where errors are found, too
        run = translate(run)[0]
    return with_extensions(without_alternatives(run), Report())


def _notes_of_phases(planned: Resolved, completed: Mapping[str, Completed]) -> Iterator[str]:
    """Yields notes on a run in phases. Those on a single phase name it."""
    yield from phase_notes(planned)
    yield from _last_step_notes(planned)
    yield from _profile_notes(planned)
    notes = (
        (phase.name, note)
        for phase in planned.phases
        for note in (*completed[phase.name].notes, *_notes(phase))
    )
    yield from lines_by_phase(notes, phases=len(planned.phases))
    yield from pass_notes(planned)


def complete(
    stack: Stack, read_files: ReadFiles, report: Report, *, tensor: int | None = None
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


def _notes(planned: Resolved) -> tuple[str, ...]:
    """Returns notes on the settings of a run, or of a phase, and on its plan."""
    notes = (*_rl_notes(planned.config), *export_notes(planned.config))
    if planned.phase is None:
        notes += (*_warmup_notes(planned), *_profile_notes(planned), *_last_step_notes(planned))
    return (*notes, *_precision_notes(planned), *_mask_notes(planned))


def _rl_notes(config: Config) -> tuple[str, ...]:
    """Returns what a user may not expect of reinforcement learning."""
    if not is_rl(config) or config.model.init_from is not None:
        return ()
    return ("training starts from random weights: model.init_from=RUN_DIR starts from a run",)


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


def _checked(stack: Stack, report: Report) -> Config:
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
    config: Config, read_files: ReadFiles, report: Report, *, tensor: int | None = None
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
            Report(check_tensor(config)).close()
    if report.errors and config.model.vocab_size is None:
        ranks = max(1, config.parallel.tensor_parallel_size)
        put(config, VOCABULARY_KEY, padded(BYTES, tensor=ranks))
    return config, facts, notes


def _planned(
    config: Config, consumed_samples_in: Callable[[Path], int], report: Report
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


def _policy_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the policy `best` would save much of the time that `nemo` takes."""
    config, seconds = resolved.config, resolved.plan.run_s()
    is_nemo = config.rampup.node_policy == NEMO and config.rampup.nodes is None
    if not is_nemo or seconds is None or len(resolved.plan.stages) < 2:
        return []
    quicker = with_values(config, {POLICY_KEY: BEST}, POLICY_KEY).config()
    try:
        best_s = run_plan(quicker).plan.run_s()
    except UsageError:
        return []
    if best_s is None or best_s > (1 - MUCH) * seconds:
        return []
    return [
        f"{POLICY_KEY}={BEST} would take {best_s / 3600:.3g} hours instead of {seconds / 3600:.3g}:"
        " it gives small batches more nodes"
    ]


def _last_step_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the last step, or every step, has a learning rate of 0."""
    if all(part.config.optim.lr == 0 for part in resolved.parts):
        return ["optim.lr=0: no step changes a weight"]
    plan, end = resolved.plan, resolved.at(resolved.plan.end_sample or 0)
    optim = end.config.optim
    if plan.end_sample is None:
        return []
    batch = plan.stages[-1].global_batch_size
    last = end.rate().at(plan.end_sample, global_batch_size=batch)
    if last > 1e-9 * optim.lr:  # the end of a cosine is rounded
        return []
    note, key = "the last step has a learning rate of 0 and changes nothing", "optim.min_lr"
    if optim.lr == 0:
        return [note]
    if end.phase is not None and key in own_keys(resolved.config.phases[end.name]):
        key = phase_key(end.name, key)
    return [f"{note}; {key}={optim.lr / 100:g} keeps it above 0"]


def _precision_notes(resolved: Resolved) -> list[str]:
    """Returns a note if GPUs are to compute in fp32 without their tensor cores."""
    trainer = resolved.config.trainer
    is_slow = (trainer.precision, trainer.matmul_precision) == ("fp32", "highest")
    if not is_slow or not is_on_gpus(trainer):
        return []
    return [
        "trainer.precision=fp32 leaves the tensor cores of GPUs idle; trainer.precision=bf16 is"
        " several times as fast, and so is fp32 with trainer.matmul_precision=high"
    ]


def _mask_notes(resolved: Resolved) -> list[str]:
    """Returns a note if attention on a GPU needs a mask with a number for each pair of tokens."""
    model = resolved.config.model
    size_bytes = mask_bytes(model, micro_batch_part(resolved.config, samples=1))
    if not size_bytes:
        return []
    return [
        f"heads of {model.head_width} numbers are too small for flex attention, which needs"
        f" {SMALLEST_FLEX_HEAD}: the mask of a sample takes {shorten_bytes(size_bytes)} on a GPU"
    ]


def _profile_notes(resolved: Resolved) -> list[str]:
    """Returns a note if the run ends before the steps that are to be profiled."""
    window, steps = resolved.config.profile.steps, resolved.plan.end_step
    if window is None or steps is None or window[0] <= steps:
        return []
    return [f"the run ends after {steps:,} steps, before profile.steps={shown(window)}"]


@contextmanager
def _new_errors(report: Report, stack: Stack) -> Iterator[None]:
    """Reports the errors of a block, except those that follow from keys known to be wrong."""
    found = Report()
    with found.noting():
        yield
    _add_new(found.errors, report, stack)


def _add_new(errors: Iterable[UsageError], report: Report, stack: Stack) -> None:
    """Reports errors, except those that follow from keys known to be wrong."""
    wrong = {key for error in report.errors for key in error.keys}
    for error in errors:
        if wrong.isdisjoint(error.keys):
            stack.name_sources(error)
            report.errors.append(error)
