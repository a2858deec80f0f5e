"""A run that begins at a checkpoint of another one, in a phase of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.batch.phased_plan import PhasedPlan
from rampcli.batch.position import Position, parse_goal
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
    if not phase.isidentifier() or phase in config.phases:
        raise UsageError(
            f"--phase {phase}: {old.path} has a phase of this name"
            if phase in config.phases
            else f"--phase {phase} is not a name of letters, digits and _",
            remedy="--phase anneal" if phase != "anneal" else "--phase anneal2",
        )
    report = Report()
    own = [word for word in words if _names_run(word)]
    stack = apply_overrides(config, own, report=report)
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
    laid = apply_overrides(
        stack.config(), inside or [phase_key(phase, f"{UNTIL}=null")], report=report
    )
    resolved = resolve_from_checkpoint(laid, report)
    return ContinuedRun(
        old=old,
        checkpoint=checkpoint,
        step=step,
        first=Position(samples=consumed, steps=step, tokens=trained_with.plan.tokens_at(consumed)),
        phase=phase,
        resolved=resolved,
        words=tuple(words),
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
