"""A run that begins at a checkpoint of another one, in a phase of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rampcli.batch.phased_plan import PhasedPlan
from rampcli.batch.position import Position, parse_goal
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.checkpoint.branch_off import branch_off
from rampcli.checkpoint.compatibility import check_resumable
from rampcli.cli.composing import resolve_from_checkpoint
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides, compose_file
from rampcli.config.layers import Layer, Precedence
from rampcli.config.phase_keys import UNTIL, may_change, phase_key, split_phase_key
from rampcli.config.phases import without_phases
from rampcli.config.rl import refuse_rl
from rampcli.config.schema import Config
from rampcli.errors import NoCheckpointError, Report, UsageError
from rampcli.launch import run as launch
from rampcli.launch.changes import SMALLEST_JUMP
from rampcli.launch.start_checks import check
from rampcli.planning.run_plan import Resolved, run_dir_of, run_plan
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints

BEFORE = "before"
"""Name of the phase before the new one, if the other run has no phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuedRun:
    """A new run, checked but not started.

    Attributes:
        old: the run whose checkpoint it begins with.
        checkpoint: this checkpoint, or None if the new run has checkpoints already.
        step, first: where the new phase begins.
        phase: name of the new phase.
    """

    old: RunDirectory
    checkpoint: Checkpoint | None
    step: int
    first: Position
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
        launch.describe(directory, self.resolved, self.words)
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
    """
    config = compose_file(old.config)
    trained_with = run_plan(snapshot.read(old.config))
    refuse_rl(config, "reinforcement learning has no phases", remedy="a run of pretraining")
    taken = {*config.phases} or {BEFORE}
    if not phase.isidentifier() or phase in taken:
        raise UsageError(
            f"--phase {phase}: the part before it has this name"
            if phase in taken
            else f"--phase {phase} is not a name of letters, digits and _",
            remedy="--phase anneal" if phase != "anneal" else "--phase anneal2",
        )
    report = Report()
    own = [word for word in words if _names_run(word)]
    stack = apply_overrides(config, own, report=report)
    report.close()
    name = stack.entry("name").value
    if name == config.name:
        name = f"{config.name}_{phase}"
    run_dir = stack.entry("run_dir").value if any(w.startswith("run_dir=") for w in own) else None
    directory = RunDirectory(run_dir_of(Config(name=name, run_dir=run_dir)))
    found = _recorded(directory, phase)
    checkpoint = None
    if found is None:
        checkpoint = _checkpoint(old, trained_with, begin)
        check_resumable(checkpoint, trained_with, corpora={})
        found = checkpoint.step, checkpoint.consumed_samples
    step, consumed = found
    last = trained_with.trained_by(consumed)
    before = BEFORE if last.phase is None else last.phase.name
    if isinstance(trained_with.plan, PhasedPlan) and last.phase is not None:
        later = trained_with.plan.phases[last.phase.number + 1 :]
        stack = without_phases(stack, [one.name for one in later])
    ends = {phase_key(before, UNTIL): f"steps:{step}", "name": name, "run_dir": run_dir}
    layer = Layer.of("rampcli phases", Precedence.USER, ends, report=report)
    stack = stack.above(layer)
    inside = [phase_key(phase, word) for word in words if not _names_run(word)]
    if (end := _default_end(words, trained_with, consumed, phase)) is not None:
        inside.append(phase_key(phase, f"{UNTIL}={end}"))
    laid = apply_overrides(stack.config(), inside, report=report)
    resolved = resolve_from_checkpoint(laid, report)
    resolved = replace(resolved, notes=(*resolved.notes, *_jump(trained_with, resolved, consumed)))
    return ContinuedRun(
        old=old,
        checkpoint=checkpoint,
        step=step,
        first=Position(samples=consumed, steps=step, tokens=trained_with.plan.tokens_at(consumed)),
        phase=phase,
        resolved=resolved,
        words=tuple(words),
    )


def _default_end(
    words: Sequence[str], trained_with: Resolved, consumed: int, phase: str
) -> str | None:
    """Returns where the new phase ends if no word says so: where the other run ends.

    None if a word ends the phase or the run.

    Raises:
        UsageError: the other run has no end, or it ends where the phase begins.
    """
    keys = {word.partition("=")[0] for word in words}
    if not keys.isdisjoint((UNTIL, *LENGTH_KEYS)):
        return None
    end = trained_with.plan.end_sample
    if end is None or end <= consumed:
        reason = "has no end" if end is None else "ends where it begins"
        raise UsageError(
            f"it is not said where phase {phase} ends, and the other run {reason}",
            keys=(phase_key(phase, UNTIL),),
            remedy="until=7.5T or another position",
        )
    return f"samples:{end}"


def _jump(before: Resolved, after: Resolved, consumed: int) -> Iterator[str]:
    """Yields a note if the schedule of the run gives the last step before the phase another rate.

    That happens if the new run is longer, for example.
    """
    rates = []
    for resolved in (before, after):
        trained = resolved.trained_by(consumed)
        size = resolved.plan.ramp.global_batch_size_at(consumed - 1)
        rates.append(trained.rate().at(consumed, global_batch_size=size))
    was, would_be = rates
    if abs(was - would_be) > SMALLEST_JUMP * was:
        yield (
            f"the learning rate jumps: the last step before the phase had {was:.2e}, and has"
            f" {would_be:.2e} in the schedule of the new run, which covers all of it"
        )


def _names_run(word: str) -> bool:
    """Returns whether a word is a setting of the run, and not of the new phase."""
    key = word.partition("=")[0]
    is_other_phase = split_phase_key(key) is not None
    return is_other_phase or not (key == UNTIL or may_change(key))


def _recorded(directory: RunDirectory, phase: str) -> tuple[int, int] | None:
    """Returns the step and the samples at which the phase of a run that exists begins, or None."""
    if not directory.config.is_file() or not complete_checkpoints(directory):
        return None
    plan = run_plan(snapshot.read(directory.config)).plan
    found = [one for one in getattr(plan, "phases", ()) if one.name == phase]
    if not found:
        raise UsageError(
            f"{directory.path} is a run without a phase {phase}",
            keys=("name",),
            remedy="another name=",
        )
    return found[0].first.steps, found[0].first.samples


def _checkpoint(old: RunDirectory, resolved: Resolved, begin: str | None) -> Checkpoint:
    """Returns the last checkpoint of a run up to a position."""
    found = complete_checkpoints(old)
    fitting = found
    if begin is not None:
        goal = parse_goal(begin, key="--from")
        fitting = [one for one in found if _position(one, resolved).count(goal.unit) <= goal.count]
    if not fitting:
        steps = " or ".join(f"--from steps:{one.step}" for one in found[:3])
        raise NoCheckpointError(
            f"{old.path} has no checkpoint" + ("" if begin is None else f" up to {begin}"),
            remedy=steps or "a run that has saved one",
        )
    return fitting[-1]


def _position(checkpoint: Checkpoint, resolved: Resolved) -> Position:
    samples = checkpoint.consumed_samples
    tokens = resolved.plan.tokens_at(samples)
    return Position(samples=samples, steps=checkpoint.step, tokens=tokens)
