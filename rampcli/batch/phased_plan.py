"""The plan of a run in phases: the plans of its phases, one after the other."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from rampcli.batch.plan import BatchPlan
from rampcli.batch.position import Position
from rampcli.batch.ramp import RampSchedule, StageExtent, Threshold
from rampcli.batch.throughput import Basis
from rampcli.batch.training_plan import StagePlan, TrainingPlan

Extent = TypeVar("Extent", bound=StageExtent)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePlan:
    """A phase of a run.

    Attributes:
        name: its name.
        number: its number, from 0.
        first: how far the run has come when it begins.
        plan: its plan. Samples, steps and stages count from the start of the run, and `ramp` from
            the start of the phase.
    """

    name: str
    number: int
    first: Position
    plan: TrainingPlan

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self.plan.sequence_length

    @property
    def samples(self) -> int | None:
        """Samples of the phase, or None if it has no end."""
        end = self.plan.end_sample
        return None if end is None else end - self.first.samples

    @property
    def steps(self) -> int | None:
        """Optimiser steps of the phase, or None if it has no end."""
        end = self.plan.end_step
        return None if end is None else end - self.first.steps

    @property
    def end(self) -> Position | None:
        """How far the run has come when the phase ends, or None if it has no end."""
        if self.samples is None or self.steps is None:
            return None
        return Position(
            samples=self.first.samples + self.samples,
            steps=self.first.steps + self.steps,
            tokens=self.first.tokens + self.samples * self.sequence_length,
        )

    def tokens_at(self, consumed_samples: int) -> int:
        """Returns the tokens of the run in its first samples, which end in this phase."""
        return self.first.tokens + (consumed_samples - self.first.samples) * self.sequence_length

    def to_json(self) -> dict[str, Any]:
        """Returns the phase as `rampcli plan --json` and plan.json have it."""
        stages = self.plan.extents
        return {
            "name": self.name,
            "sequence_length": self.sequence_length,
            "first_stage": stages[0].stage,
            "stages": len(stages),
            "first_sample": self.first.samples,
            "samples": self.samples,
            "first_step": self.first.steps,
            "steps": self.steps,
            "first_token": self.first.tokens,
            "tokens": None if self.samples is None else self.samples * self.sequence_length,
        }


def stage_name(stage: StageExtent, phase: PhasePlan | None) -> str:
    """Returns what errors call a stage: its number in its phase, if the run has phases."""
    if phase is None:
        return f"stage {stage.stage}"
    return f"stage {stage.stage - phase.plan.extents[0].stage} of phase {phase.name}"


def placed(plan: TrainingPlan, *, first: Position, first_stage: int) -> TrainingPlan:
    """Returns the plan of a phase alone, with its stages counted from the start of the run."""

    def moved(stages: Sequence[Extent]) -> tuple[Extent, ...]:
        return tuple(
            replace(
                stage,
                stage=stage.stage + first_stage,
                first_sample=stage.first_sample + first.samples,
                first_step=stage.first_step + first.steps,
            )
            for stage in stages
        )

    return replace(plan, stages=moved(plan.stages), passed=moved(plan.passed))


@dataclass(frozen=True, kw_only=True)
class PhasedPlan(TrainingPlan):
    """The stages of all phases, in order. What differs between phases is asked of the stage's.

    Attributes:
        phases: the phases, in order. Only the last one may have no end.
    """

    phases: tuple[PhasePlan, ...]

    @classmethod
    def join(cls, phases: Sequence[PhasePlan]) -> "PhasedPlan":
        """Returns the plan of a run from those of its phases."""
        plans = [phase.plan for phase in phases]
        extents = [stage for plan in plans for stage in plan.extents]
        # The nodes of a finished stage that fits none are not planned.
        unplanned = [at for at, one in enumerate(extents) if not isinstance(one, StagePlan)]
        passed = max(unplanned, default=-1) + 1
        *earlier, last = plans
        sizes = [
            Threshold(stage.first_sample, stage.global_batch_size)
            for plan in earlier
            for stage in plan.extents
        ]
        begun = phases[-1].first.samples
        sizes += [  # also those that the run does not reach, as in a run without phases
            Threshold(begun + stage.first_sample, stage.global_batch_size)
            for stage in last.ramp.stages
        ]
        return cls(
            global_batch_size=last.global_batch_size,
            semantics=last.semantics,
            sequence_length=last.sequence_length,
            stages=tuple(one for one in extents[passed:] if isinstance(one, StagePlan)),
            ramp=RampSchedule(thresholds=tuple(sizes)),
            fleet=last.fleet,
            micro_batch_rule=last.micro_batch_rule,
            passed=tuple(extents[:passed]),
            clock=next((plan.clock for plan in plans if plan.clock is not None), None),
            restarts_always=last.restarts_always,
            notes=tuple(
                f"phase {phase.name}: {note}" for phase in phases for note in phase.plan.notes
            ),
            phases=tuple(phases),
        )

    def phase_at(self, consumed_samples: int) -> PhasePlan:
        """Returns the phase of a step that starts after `consumed_samples`, or the last one."""
        firsts = [phase.first.samples for phase in self.phases]
        return self.phases[max(0, bisect_right(firsts, consumed_samples) - 1)]

    def begins_phase(self, consumed_samples: int) -> bool:
        """Returns whether a phase begins after `consumed_samples`."""
        return any(phase.first.samples == consumed_samples for phase in self.phases)

    def of(self, stage: StageExtent) -> TrainingPlan:
        """Returns the plan of a stage's phase."""
        return self.phase_at(stage.first_sample).plan

    def tokens_at(self, consumed_samples: int) -> int:
        """Returns the tokens in the first `consumed_samples` samples of the run."""
        return self.phase_at(max(0, consumed_samples - 1)).tokens_at(consumed_samples)

    @property
    def has_one_length(self) -> bool:
        """Whether the samples of all phases have the same length."""
        return len({phase.sequence_length for phase in self.phases}) == 1

    @property
    def is_piped(self) -> bool:
        """Whether a phase spreads the layers of the model over a pipeline of ranks."""
        return any(phase.plan.is_piped for phase in self.phases)

    def ends_processes(self, stage: StagePlan, consumed_samples: int) -> bool:
        """Returns whether a stage's processes end after `consumed_samples` and others resume.

        They end with their phase, because the settings of the next one need not fit them.
        """
        following = self.stage_at(consumed_samples)
        return self.of(following) is not self.of(stage) or self.of(stage).ends_processes(
            stage, consumed_samples
        )

    def batch_on(self, stage: StagePlan, world_size: int) -> BatchPlan:
        """Returns how a stage's batch is split over another world size than the planned one.

        Raises:
            UsageError: the batch does not divide.
        """
        return self.of(stage).batch_on(stage, world_size)

    def loads_per_step(self, stage: StagePlan) -> int:
        """Returns the passes in which a stage's step loads its samples."""
        return self.of(stage).loads_per_step(stage)

    def stage_s(self, stage: StagePlan) -> float | None:
        """Returns the seconds of a stage, or None if it is open or its throughput is unknown."""
        return self.of(stage).stage_s(stage)

    def basis_of(self, stage: StagePlan) -> Basis | None:
        """Returns what the seconds of a stage rest on, or None if no clock is known."""
        return self.of(stage).basis_of(stage)

    def bubble(self, stage: StagePlan) -> float:
        """Returns the share of a stage's steps in which ranks wait for others of their pipeline."""
        return self.of(stage).bubble(stage)

    def restarts(self) -> int:
        """Returns how often processes restart, or 0 if no clock is known."""
        if self.clock is None:
            return 0
        return sum(
            self.ends_processes(one, following.first_sample)
            for one, following in pairwise(self.stages)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the document of `rampcli plan --json`, with the phases.

        Each stage has the name of its phase, as `phase`, and its own `sequence_length`. The run has
        none if its phases differ in it.
        """
        data = TrainingPlan.to_json(self)
        if not self.has_one_length:
            del data["sequence_length"]
        for row, stage in zip(data["stages"], self.extents, strict=True):
            phase = self.phase_at(stage.first_sample)
            row |= {"phase": phase.name, "sequence_length": phase.sequence_length}
        return data | {"phases": [phase.to_json() for phase in self.phases]}
