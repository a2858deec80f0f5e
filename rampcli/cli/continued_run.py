"""A run that begins at a checkpoint of another one, in a phase of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rampcli.batch.averages import MERGE_KEY
from rampcli.batch.position import RunPosition, parse_goal
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.checkpoint.compatibility import branch_off, check_resumable
from rampcli.cli.composing import resolve_from_checkpoint
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides, compose_file
from rampcli.config.layers import Layer, Precedence, Stack, sources_named
from rampcli.config.phases import without_phases
from rampcli.config.reading import join_split_lists
from rampcli.errors import ErrorReport, ForeignCheckpointError, NoCheckpointError, UsageError
from rampcli.launch import run as launch
from rampcli.launch.start_checks import check
from rampcli.planning.run_plan import Resolved, run_dir_of, run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints
from rampcli.settings.by_key import leaves, may_change
from rampcli.settings.config import Config
from rampcli.settings.phase_keys import UNTIL, phase_key, split_phase_key
from rampcli.settings.rl import example_of_end, is_rl

BEFORE = "before"
"""Name of the phase before the new one, if the other run has no phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuedRun:
    """A new run, checked but not started.

    Attributes:
        old: the run whose checkpoint it begins with.
        checkpoint: this checkpoint, or None if the new run has checkpoints already.
        first: where the new phase begins.
        phase: name of the new phase.
    """

    old: RunDirectory
    checkpoint: Checkpoint | None
    first: RunPosition
    phase: str
    resolved: Resolved
    words: tuple[str, ...]

    def link(self) -> None:
        """Makes the run directory with the checkpoint, unless it has one.

        Raises:
            RampcliError: the run cannot start, or the checkpoint was removed.
        """
        if self.checkpoint is None:
            return
        check(self.resolved)
        directory = RunDirectory(self.resolved.run_dir)
        launch.write_run_files(directory, self.resolved, self.words)
        place = {"step": self.first.steps, "consumed_samples": self.first.samples}
        directory.append_event("branch", **place, run=str(self.old.path))
        trained = self.resolved.trained_by(self.checkpoint.consumed_samples)
        branch_off(self.checkpoint, directory, settings=snapshot.identity(trained.config))


def continue_run(
    old: RunDirectory, words: Sequence[str], *, begin: str | None, phase: str
) -> ContinuedRun:
    """Composes and checks the run that begins at a checkpoint of another. Nothing is written.

    Args:
        old: the other run.
        words: `KEY=VALUE`. Settings that a phase may set are those of the new phase.
        begin: position up to which the last checkpoint is taken; None is the newest.
        phase: name of the new phase.

    Raises:
        UsageError: the words cannot be laid over the run, or a phase has this name.
        NoCheckpointError: the run has no such checkpoint.
        ForeignCheckpointError: its checkpoint is not one of the new run.
    """
    config, report = compose_file(old.config), ErrorReport()
    trained_with = run_plan(snapshot.read(old.config))
    _check_name(phase, config)
    of_run, inside = _divided(join_split_lists(words, report=report), phase)
    stack = apply_overrides(config, of_run, report=report)
    report.close()
    place = _place(stack, of_run, own_name=f"{config.name}_{phase}")
    checkpoint, first = None, _recorded(RunDirectory(run_dir_of(Config(**place))), phase)
    if first is None:
        checkpoint = _checkpoint(old, trained_with, begin)
        first = _position(checkpoint, trained_with)
    last = trained_with.trained_by(first.samples).plan
    ended = [one.name or BEFORE for one in trained_with.plan.phases[: last.number + 1]]
    _check_not_ended(inside, ended)
    later = [name for name in config.phases if name not in ended]
    ends = {phase_key(ended[-1], UNTIL): f"steps:{first.steps}", **place}
    layer = Layer.of("rampcli phases", Precedence.USER, ends, report=report)
    stack = without_phases(stack, later).above(layer)
    end = _default_end([*of_run, *inside], trained_with, first.samples, phase)
    laid = apply_overrides(stack.config(), [*end, *inside], report=report)
    resolved = resolve_from_checkpoint(laid, report)
    _check_begins(resolved, checkpoint, phase, first.steps)
    notes = (*resolved.notes, *_jump(trained_with, resolved, first.samples))
    return ContinuedRun(
        old=old,
        checkpoint=checkpoint,
        first=first,
        phase=phase,
        resolved=replace(resolved, notes=notes),
        words=tuple(words),
    )


def _check_name(phase: str, config: Config) -> None:
    """Checks the name of the new phase.

    Raises:
        UsageError: it is no name, or a phase of the other run has it.
    """
    is_taken = phase in ({*config.phases} or {BEFORE})
    if phase.isidentifier() and not is_taken:
        return
    raise UsageError(
        f"--phase {phase}: the other run has a phase of this name"
        if is_taken
        else f"--phase {phase} is not a name of letters, digits and _",
        remedy="--phase anneal" if phase != "anneal" else "--phase anneal2",
    )


def _divided(words: Sequence[str], phase: str) -> tuple[list[str], list[str]]:
    """Returns the words that are settings of the run, and those of phases, the new one first."""
    of_run, of_phase, of_others = list[str](), list[str](), list[str]()
    for word in words:
        key = word.partition("=")[0]
        parts = split_phase_key(key)
        if parts is not None:
            (of_phase if parts[0] == phase else of_others).append(word)
        elif key == UNTIL or may_change(key):
            of_phase.append(phase_key(phase, word))
        else:
            of_run.append(word)
    return of_run, [*of_phase, *of_others]


def _place(stack: Stack, words: Sequence[str], *, own_name: str) -> dict[str, Any]:
    """Returns the name and the run directory of the new run: those of words, or its own."""
    keys = _keys(words)
    return {
        "name": stack.entry("name").value if "name" in keys else own_name,
        "run_dir": stack.entry("run_dir").value if "run_dir" in keys else None,
    }


def _keys(words: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in words]


def _check_not_ended(words: Sequence[str], ended: Sequence[str]) -> None:
    """Checks that no word sets something in a phase before the new one.

    Raises:
        UsageError: one does.
    """
    for key in _keys(words):
        parts = split_phase_key(key)
        if parts is not None and parts[0] in ended:
            raise UsageError(
                f"{key}: phase {parts[0]} has ended where the new phase begins",
                keys=(key,),
                remedy=f"{parts[1]} for the new phase",
            )


def _check_begins(resolved: Resolved, checkpoint: Checkpoint | None, phase: str, step: int) -> None:
    """Checks that the new run reaches its new phase, and may begin with the checkpoint.

    Raises:
        UsageError: it ends before.
        ForeignCheckpointError: it has other settings than the checkpoint.
    """
    if phase not in [one.name for one in resolved.phases]:
        values = dict(leaves(resolved.config))
        with sources_named(resolved.config):
            raise UsageError(
                f"the run ends before phase {phase} begins, at step {step:,}",
                keys=tuple(key for key in LENGTH_KEYS if values[key] is not None),
                remedy="a later end of the run",
            )
    if checkpoint is None:
        return
    try:
        check_resumable(checkpoint, resolved, corpora={})
    except ForeignCheckpointError as error:
        if MERGE_KEY not in error.keys:
            error.remedies = ("the settings and phases that the other run was trained with",)
        raise


def _default_end(
    words: Sequence[str], trained_with: Resolved, consumed: int, phase: str
) -> list[str]:
    """Returns the word that ends the new phase if none does: where the other run ends.

    If a word ends the new run, it ends the phase, too.

    Raises:
        UsageError: the other run has no end, or it ends where the phase begins.
    """
    end_key, keys = phase_key(phase, UNTIL), _keys(words)
    if end_key in keys:
        return []
    if not set(LENGTH_KEYS).isdisjoint(keys):
        return [f"{end_key}=null"]
    end = trained_with.plan.end_sample
    if end is None or end <= consumed:
        reason = "has no end" if end is None else "ends where it begins"
        raise UsageError(
            f"phase {phase} needs an end, because the other run {reason}",
            keys=(end_key,),
            remedy=f"until={example_of_end(trained_with.config)} or another position",
        )
    return [f"{end_key}=samples:{end}"]


def _jump(before: Resolved, after: Resolved, consumed: int) -> Iterator[str]:
    """Yields a note if the schedule of the run gives the last step before the phase another rate.

    That happens if the new run is longer, for example.
    """
    rates = []
    for resolved in (before, after):
        trained = resolved.trained_by(consumed)
        size = resolved.plan.ramp.global_batch_size_at(consumed - 1)
        rates.append(trained.rate.at(consumed, global_batch_size=size))
    was, would_be = rates
    if abs(was - would_be) > launch.SMALLEST_JUMP * was:
        yield (
            f"the learning rate jumps: the last step before the phase had {was:.2e}, and has"
            f" {would_be:.2e} in the schedule of the new run, which covers all of it"
        )


def _recorded(directory: RunDirectory, phase: str) -> RunPosition | None:
    """Returns where the phase of a run begins, or None if the run does not exist."""
    if not directory.config.is_file() or not complete_checkpoints(directory):
        return None
    plan = run_plan(snapshot.read(directory.config)).plan
    found = [one for one in plan.phases if one.name == phase]
    if not found:
        raise UsageError(
            f"{directory.path} is a run without a phase {phase}",
            keys=("name",),
            remedy="another name=",
        )
    return found[0].first


def _checkpoint(old: RunDirectory, resolved: Resolved, begin: str | None) -> Checkpoint:
    """Returns the last checkpoint of a run up to a position."""
    found = complete_checkpoints(old)
    fitting = found
    if begin is not None:
        prompts = 0 if is_rl(resolved.config) else None
        goal = parse_goal(begin, key="--from", prompts=prompts)
        fitting = [one for one in found if _position(one, resolved).count(goal.unit) <= goal.count]
    if not fitting:
        steps = " or ".join(f"--from steps:{one.step}" for one in found[:3])
        raise NoCheckpointError(
            f"{old.path} has no checkpoint" + ("" if begin is None else f" up to {begin}"),
            remedy=steps or "a run that has saved one",
        )
    return fitting[-1]


def _position(checkpoint: Checkpoint, resolved: Resolved) -> RunPosition:
    samples = checkpoint.consumed_samples
    tokens = resolved.plan.tokens_at(samples)
    return RunPosition(samples=samples, steps=checkpoint.step, tokens=tokens)
