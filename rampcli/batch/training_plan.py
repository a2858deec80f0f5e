"""The whole run, planned before it starts: its phases, and each stage with its batch and nodes."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeVar

from rampcli.batch.layout import Layout, lay_out
from rampcli.batch.listed_nodes import ListedNodes
from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.misfits import check_fit
from rampcli.batch.node_policies import UNTIMED, policy_of
from rampcli.batch.nodes import Fleet
from rampcli.batch.notes import plan_notes
from rampcli.batch.pipeline import bubble
from rampcli.batch.plan import FLEET_KEYS, BatchPlan, check_product
from rampcli.batch.position import RUN_START, SAMPLES_UNIT, TOKENS_UNIT, Goal, RunPosition
from rampcli.batch.ramp import SEMANTICS, RampSchedule, RampStage, StageExtent, Threshold
from rampcli.batch.run_settings import BatchSettings, steps_to_end
from rampcli.batch.throughput import Basis, Clock, Throughput, Work, restarts_at
from rampcli.errors import UsageError

Extent = TypeVar("Extent", bound=StageExtent)


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan(StageExtent):
    """A stage of the run and the processes that train it. Only the last stage may be open."""

    num_nodes: int
    world_size: int
    data_parallel_size: int
    micro_batch_size: int
    accumulate_grad_batches: int


@dataclass(frozen=True, kw_only=True)
class PhasePlan:
    """A phase of a run. A run whose phases have no names is one phase.

    Samples, steps and stages count from the start of the run, and `ramp` from the start of the
    phase.

    Attributes:
        global_batch_size: scheduled batch size at the end of the schedule, in samples.
        semantics: name in `SEMANTICS`.
        sequence_length: tokens per sample.
        stages: the stages after those in `passed`, in order. All of them fit the fleet.
        fleet: nodes that the stages were planned for.
        micro_batch_rule: how large the micro batch of a stage is.
        passed: stages up to the last finished one that does not fit the fleet. Empty if all fit.
        clock: duration of stages and restarts, or None if no throughput is known.
        restarts_always: processes end at every boundary, not only if the world size changes.
        notes: remarks about the plan, for the user.
        name: its name, or None.
        number: its number, from 0.
        first: how far the run has come when it begins.
    """

    global_batch_size: int
    semantics: str
    sequence_length: int
    stages: tuple[StagePlan, ...]
    ramp: RampSchedule
    fleet: Fleet
    micro_batch_rule: MicroBatchRule
    passed: tuple[StageExtent, ...] = ()
    clock: Clock | None = None
    restarts_always: bool = True
    notes: tuple[str, ...] = ()
    name: str | None = None
    number: int = 0
    first: RunPosition = RUN_START

    @property
    def extents(self) -> tuple[StageExtent, ...]:
        """All stages of the phase, including those in `passed`."""
        return (*self.passed, *self.stages)

    @property
    def samples(self) -> int | None:
        """Samples of the phase, or None if it has no end."""
        end = self.extents[-1].end_sample
        return None if end is None else end - self.first.samples

    @property
    def steps(self) -> int | None:
        """Optimiser steps of the phase, or None if it has no end."""
        last = self.extents[-1]
        return None if last.steps is None else last.first_step + last.steps - self.first.steps

    @property
    def end(self) -> RunPosition | None:
        """How far the run has come when the phase ends, or None if it has no end."""
        if self.samples is None or self.steps is None:
            return None
        return RunPosition(
            samples=self.first.samples + self.samples,
            steps=self.first.steps + self.steps,
            tokens=self.first.tokens + self.samples * self.sequence_length,
        )

    @property
    def is_piped(self) -> bool:
        """Whether the layers of the model are spread over a pipeline of ranks."""
        return self.fleet.parallel.pipeline > 1

    def tokens_at(self, consumed_samples: int) -> int:
        """Returns the tokens of the run in its first samples, which end in this phase."""
        return self.first.tokens + (consumed_samples - self.first.samples) * self.sequence_length

    def stage_name(self, stage: StageExtent) -> str:
        """Returns what errors call a stage: its number in its phase, if the phase has a name."""
        if self.name is None:
            return f"stage {stage.stage}"
        return f"stage {stage.stage - self.extents[0].stage} of phase {self.name}"

    def batch_on(self, stage: StagePlan, world_size: int) -> BatchPlan:
        """Returns how a stage's batch is split over another world size than the planned one.

        Raises:
            UsageError: the batch does not divide.
        """
        ranks = self.fleet.parallel.data_parallel_size(world_size)
        return self.micro_batch_rule.divide(stage.global_batch_size, ranks)

    def step_tokens(self, batch_plan: BatchPlan) -> int:
        """Returns the tokens of a step whose batch is split in this way."""
        return batch_plan.global_batch_size * self.sequence_length

    def loads_per_step(self, stage: StagePlan) -> int:
        """Returns the passes in which a stage's step loads its samples."""
        at_once = SEMANTICS[self.semantics].loads_step_at_once
        return 1 if at_once else stage.accumulate_grad_batches

    def stage_s(self, stage: StagePlan) -> float | None:
        """Returns the seconds of a stage, or None if it is open or its throughput is unknown."""
        if stage.samples is None or self.clock is None or self.basis_of(stage) is Basis.UNKNOWN:
            return None
        work = Work(global_batch_size=stage.global_batch_size, samples=stage.samples)
        return self.clock.stage_s(
            work, stage.num_nodes, micro_batch_size=stage.micro_batch_size, fleet=self.fleet
        )

    def basis_of(self, stage: StagePlan) -> Basis | None:
        """Returns what the seconds of a stage rest on, or None if no clock is known."""
        if self.clock is None:
            return None
        return self.clock.throughput.basis_of(
            stage.accumulate_grad_batches, micro_batch_size=stage.micro_batch_size
        )

    def bubble(self, stage: StagePlan) -> float:
        """Returns the share of a stage's steps in which ranks wait for others of their pipeline."""
        return bubble(self.fleet.parallel, accumulate_grad_batches=stage.accumulate_grad_batches)

    def to_json(self) -> dict[str, Any]:
        """Returns the phase as `rampcli plan --json` and plan.json have it."""
        stages = self.extents
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


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The stages of a run, in order. What differs between phases is asked of the stage's phase.

    Attributes:
        phases: the phases, in order. Only the last one may have no end.
    """

    phases: tuple[PhasePlan, ...]

    @property
    def has_one_length(self) -> bool:
        """Whether the samples of all phases have the same length."""
        return len({phase.sequence_length for phase in self.phases}) == 1

    @cached_property
    def extents(self) -> tuple[StageExtent, ...]:
        """All stages of the run, including those in `passed`."""
        return tuple(stage for phase in self.phases for stage in phase.extents)

    @cached_property
    def passed(self) -> tuple[StageExtent, ...]:
        """Stages up to the last finished one that does not fit the fleet. Empty if all fit."""
        unplanned = [at for at, one in enumerate(self.extents) if not isinstance(one, StagePlan)]
        return self.extents[: max(unplanned, default=-1) + 1]

    @cached_property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stages after those in `passed`."""
        ahead = self.extents[len(self.passed) :]
        return tuple(stage for stage in ahead if isinstance(stage, StagePlan))

    @cached_property
    def ramp(self) -> RampSchedule:
        """The batches of the run, also those after its end."""
        if len(self.phases) == 1:
            return self.phases[0].ramp
        *earlier, last = self.phases
        sizes = [
            Threshold(stage.first_sample, stage.global_batch_size)
            for phase in earlier
            for stage in phase.extents
        ]
        sizes += [
            Threshold(last.first.samples + stage.first_sample, stage.global_batch_size)
            for stage in last.ramp.stages
        ]
        return RampSchedule(thresholds=tuple(sizes))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the plan, for the user."""
        return tuple(
            note if phase.name is None else f"phase {phase.name}: {note}"
            for phase in self.phases
            for note in phase.notes
        )

    @property
    def global_batch_size(self) -> int:
        """Scheduled batch size at the end of the schedule, in samples."""
        return self.phases[-1].global_batch_size

    @property
    def sequence_length(self) -> int:
        """Tokens per sample at the end of the run."""
        return self.phases[-1].sequence_length

    @property
    def clock(self) -> Clock | None:
        """Duration of stages and restarts, or None if no throughput is known."""
        return next((one.clock for one in self.phases if one.clock is not None), None)

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the run, or None if it has no end."""
        return self.extents[-1].end_sample

    @property
    def end_step(self) -> int | None:
        """Optimiser steps of the whole run, or None if it has no end."""
        last = self.extents[-1]
        return None if last.steps is None else last.first_step + last.steps

    @property
    def largest_world_size(self) -> int:
        """Processes of the largest stage in `stages`."""
        return max(stage.world_size for stage in self.stages)

    @property
    def is_piped(self) -> bool:
        """Whether a phase spreads the layers of the model over a pipeline of ranks."""
        return any(phase.is_piped for phase in self.phases)

    @property
    def number_of_stages(self) -> int:
        """Stages of the whole run, including those in `passed`."""
        return len(self.extents)

    @property
    def end_tokens(self) -> int | None:
        """Tokens of the whole run, or None if it has no end."""
        end = self.end_sample
        return None if end is None else self.tokens_at(end)

    def in_samples(self) -> "TrainingPlan":
        """Returns the plan with samples of one token, so that its tokens count samples."""
        return TrainingPlan(
            phases=tuple(
                replace(one, sequence_length=1, first=replace(one.first, tokens=one.first.samples))
                for one in self.phases
            )
        )

    def tokens_at(self, consumed_samples: int) -> int:
        """Returns the tokens in the first `consumed_samples` samples of the run."""
        return self.phase_at(max(0, consumed_samples - 1)).tokens_at(consumed_samples)

    def samples_at(self, steps: int) -> int:
        """Returns the samples that the first `steps` optimiser steps of the run consume."""
        return self.ramp.samples_after(steps)

    def tokens_to(self, goal: Goal) -> int:
        """Returns the tokens of the run before a position."""
        if goal.unit == TOKENS_UNIT:
            return goal.count
        samples = goal.count if goal.unit == SAMPLES_UNIT else self.samples_at(goal.count)
        return self.tokens_at(samples)

    def phase_at(self, consumed_samples: int) -> PhasePlan:
        """Returns the phase of a step that starts after `consumed_samples`, or the last one."""
        firsts = [phase.first.samples for phase in self.phases]
        return self.phases[max(0, bisect_right(firsts, consumed_samples) - 1)]

    def begins_phase(self, consumed_samples: int) -> bool:
        """Returns whether a phase begins after `consumed_samples`."""
        return any(phase.first.samples == consumed_samples for phase in self.phases)

    def of(self, stage: StageExtent) -> PhasePlan:
        """Returns the phase of a stage."""
        return self.phase_at(stage.first_sample)

    def stage_at(self, consumed_samples: int) -> StagePlan:
        """Returns the stage of a step that starts after `consumed_samples`. O(log stages).

        Raises:
            UsageError: the stage does not fit the fleet.
        """
        index = bisect_right(self.stages, consumed_samples, key=attrgetter("first_sample")) - 1
        if index < 0:
            fleet = self.phases[-1].fleet
            raise UsageError(
                f"the stage after {consumed_samples} samples does not fit"
                f" {fleet.num_nodes} nodes of {fleet.devices} processes",
                keys=FLEET_KEYS,
                remedy="the nodes and the micro batch that the stage was trained with",
            )
        return self.stages[index]

    def stage(self, number: int) -> StageExtent:
        """Returns a stage by its number, from 0."""
        return self.extents[number]

    def is_complete(self, consumed_samples: int) -> bool:
        """Returns whether the run is complete after `consumed_samples`."""
        return self.end_sample is not None and consumed_samples >= self.end_sample

    def ends_processes(self, stage: StagePlan, consumed_samples: int) -> bool:
        """Returns whether a stage's processes end after `consumed_samples` and others resume.

        They end with their phase, because the settings of the next one need not fit them.
        """
        following, phase = self.stage_at(consumed_samples), self.of(stage)
        if self.of(following) is not phase:
            return True
        return following is not stage and restarts_at(
            stage.world_size, following.world_size, always=phase.restarts_always
        )

    def stages_by_processes(self) -> list[tuple[StagePlan, ...]]:
        """Returns the stages in groups that the same processes train."""
        groups: list[tuple[StagePlan, ...]] = []
        for stage in self.stages:
            if groups and not self.ends_processes(groups[-1][-1], stage.first_sample):
                groups[-1] += (stage,)
            else:
                groups.append((stage,))
        return groups

    def batch_on(self, stage: StagePlan, world_size: int) -> BatchPlan:
        """Returns `PhasePlan.batch_on` of a stage."""
        return self.of(stage).batch_on(stage, world_size)

    def stage_s(self, stage: StagePlan) -> float | None:
        """Returns `PhasePlan.stage_s` of a stage."""
        return self.of(stage).stage_s(stage)

    def basis_of(self, stage: StagePlan) -> Basis | None:
        """Returns `PhasePlan.basis_of` of a stage."""
        return self.of(stage).basis_of(stage)

    def run_s(self) -> float | None:
        """Returns the seconds of the run with its restarts, or None if they are unknown."""
        if any(self.stage_s(stage) is None for stage in self.stages):
            return None
        return self.known_s()

    def known_s(self) -> float | None:
        """Returns the seconds of the stages that have them, and of restarts; None if none has."""
        seconds = [self.stage_s(stage) for stage in self.stages]
        known = [second for second in seconds if second is not None]
        if self.clock is None or not known:
            return None
        return sum(known) + self.restarts() * self.clock.restart_s

    def restarts(self) -> int:
        """Returns how often processes restart, or 0 if no clock is known."""
        if self.clock is None:
            return 0
        return sum(
            self.ends_processes(one, following.first_sample)
            for one, following in pairwise(self.stages)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the document of `rampcli plan --json`.

        Stages in `passed` have null for everything that depends on the fleet. If the phases have
        names, each stage has the one of its phase, as `phase`, and its own `sequence_length`, and
        the run has no length if its phases differ in it.
        """
        last, names = self.phases[-1], [field.name for field in fields(StagePlan)]
        data: dict[str, Any] = {
            "global_batch_size": last.global_batch_size,
            "semantics": last.semantics,
            "sequence_length": last.sequence_length,
            "restarts_always": last.restarts_always,
            "stages": [
                {name: getattr(stage, name, None) for name in names} for stage in self.extents
            ],
        }
        if self.phases[0].name is None:
            return data
        if not self.has_one_length:
            del data["sequence_length"]
        for row, stage in zip(data["stages"], self.extents, strict=True):
            phase = self.of(stage)
            row |= {"phase": phase.name, "sequence_length": phase.sequence_length}
        return data | {"phases": [phase.to_json() for phase in self.phases]}


def plan_training(**settings: Any) -> TrainingPlan:
    """Returns the plan of a run that is one phase, from the arguments of `plan_phase`."""
    return TrainingPlan(phases=(plan_phase(**settings),))


def plan_phase(
    *,
    batch: BatchSettings,
    fleet: Fleet,
    node_policy: str,
    nodes: Sequence[int] | None = None,
    sequence_length: int,
    ends: Sequence[Goal] = (),
    throughput: Throughput | None = None,
    restart_s: float = 0.0,
    restarts_always: bool = True,
    consumed_samples: int = 0,
    may_be_over: bool = False,
    number: int = 0,
    first: RunPosition = RUN_START,
    first_stage: int = 0,
) -> PhasePlan:
    """Plans a phase and checks every stage that is still to come against its own nodes.

    Args:
        batch: the batch, and how it changes.
        node_policy: name in `rampcli.batch.node_policies.NODE_POLICIES`.
        nodes: of each stage of the schedule, in place of a policy, or None.
        sequence_length: tokens per sample.
        ends: where the phase ends, at the first of several. Without any, it has no end.
        throughput: of one GPU, or None if it is not known.
        restart_s: seconds that a restart of the processes takes.
        restarts_always: restart at every boundary, not only if the number of nodes changes.
        consumed_samples: progress of a resumed run, from the start of the phase. Stages that end
            before are not checked.
        may_be_over: whether all stages may have ended. Else, the last one is checked in any case.
        number: of the phase, from 0.
        first: how far the run has come when the phase begins.
        first_stage: stages of the phases before it.

    Raises:
        UsageError: everything that does not fit.
    """
    layout, schedule = lay_out(
        batch,
        fleet=fleet,
        policy=policy_of(node_policy, nodes),
        sequence_length=sequence_length,
    )
    clock = Clock(
        throughput=throughput or UNTIMED.throughput,
        sequence_length=sequence_length,
        restart_s=restart_s if throughput else 0.0,
        restarts_always=restarts_always,
    )
    walked = _cut(schedule, steps_to_end(ends, schedule, sequence_length=sequence_length))
    sizes = schedule.scheduled_sizes()
    finished = sum(
        stage.end_sample is not None and stage.end_sample <= consumed_samples
        for stage in (walked if may_be_over else walked[:-1])
    )
    if nodes is not None:
        coming = range(finished, len(walked))
        ListedNodes(nodes=nodes, layout=layout, schedule=schedule, coming=coming).check()
    chosen = layout.nodes_of_stages(walked, sizes, clock)
    check_fit(layout, walked, chosen, finished=finished, sizes=sizes)
    passed = max((index + 1 for index in range(finished) if chosen[index] is None), default=0)
    stages = [
        _plan_stage(stage, n, layout)
        for stage, n in zip(walked, chosen, strict=True)
        if stage.stage >= passed and n is not None
    ]
    if stages:
        _check_accumulation(batch, stages, schedule)

    def placed(stages: Sequence[Extent]) -> tuple[Extent, ...]:
        """Returns stages with their samples, steps and numbers from the start of the run."""
        return tuple(
            replace(
                stage,
                stage=stage.stage + first_stage,
                first_sample=stage.first_sample + first.samples,
                first_step=stage.first_step + first.steps,
            )
            for stage in stages
        )

    return PhasePlan(
        global_batch_size=schedule.target,
        semantics=batch.semantics,
        sequence_length=sequence_length,
        stages=placed(stages),
        ramp=schedule,
        fleet=fleet,
        micro_batch_rule=layout.micro_batch_rule,
        passed=placed(walked[:passed]),
        clock=clock if throughput else None,
        restarts_always=restarts_always,
        notes=plan_notes(
            schedule,
            walked,
            ends if batch.phase is None else None,
            sequence_length,
            unit=batch.unit,
        ),
        name=batch.phase,
        number=number,
        first=first,
    )


def _cut(schedule: RampSchedule, end_step: int | None) -> list[RampStage]:
    """Returns the stages that start before `end_step`, the last one cut there."""
    if end_step is None:
        return list(schedule.stages)
    stages = [stage for stage in schedule.stages if stage.first_step < end_step]
    last = stages[-1]
    steps = end_step - last.first_step
    if last.steps is not None:
        steps = min(last.steps, steps)
    stages[-1] = replace(last, steps=steps, samples=steps * last.global_batch_size)
    return stages


def _plan_stage(stage: RampStage, num_nodes: int, layout: Layout) -> StagePlan:
    fleet = layout.fleet
    ranks = fleet.data_parallel_size(num_nodes)
    batch_plan = layout.micro_batch_rule.divide(stage.global_batch_size, ranks)
    return StagePlan(
        **{field.name: getattr(stage, field.name) for field in fields(StageExtent)},
        num_nodes=num_nodes,
        world_size=num_nodes * fleet.devices,
        data_parallel_size=batch_plan.data_parallel_size,
        micro_batch_size=batch_plan.micro_batch_size,
        accumulate_grad_batches=batch_plan.accumulate_grad_batches,
    )


def _check_accumulation(
    batch: BatchSettings, stages: Sequence[StagePlan], schedule: RampSchedule
) -> None:
    """Compares the largest stage with the requested accumulation, if it is among `stages`."""
    largest = max(stages, key=lambda stage: stage.global_batch_size)
    if largest.global_batch_size == max(stage.global_batch_size for stage in schedule.stages):
        check_product(
            largest.global_batch_size,
            largest.micro_batch_size,
            largest.data_parallel_size,
            batch.accumulate_grad_batches,
        )
