"""The whole run, planned before it starts: each stage with its batch, its nodes and its steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from rampcli.batch.layout import Layout, lay_out
from rampcli.batch.listed_nodes import ListedNodes
from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.misfits import check_fit
from rampcli.batch.node_policies import UNTIMED, policy_of
from rampcli.batch.nodes import Clock, Fleet, Work, count_restarts, restarts_at
from rampcli.batch.notes import plan_notes
from rampcli.batch.pipeline import bubble
from rampcli.batch.plan import FLEET_KEYS, BatchPlan, check_product
from rampcli.batch.position import SAMPLES, TOKENS, Goal
from rampcli.batch.ramp import SEMANTICS, RampSchedule, RampStage, StageExtent
from rampcli.batch.run_settings import BatchSettings, FirstEnd, RunLength
from rampcli.batch.throughput import Basis, Throughput
from rampcli.errors import Report, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan(StageExtent):
    """A stage of the run and the processes that train it. Only the last stage may be open."""

    num_nodes: int
    world_size: int
    data_parallel_size: int
    micro_batch_size: int
    accumulate_grad_batches: int


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The stages of a run, in order.

    Attributes:
        global_batch_size: scheduled batch size at the end of the schedule, in samples.
        semantics: name in `SEMANTICS`.
        sequence_length: tokens per sample.
        stages: the stages after those in `passed`. All of them fit the fleet.
        fleet: nodes that the stages were planned for.
        micro_batch_rule: how large the micro batch of a stage is.
        passed: stages up to the last finished one that does not fit the fleet. Empty if all fit.
        clock: duration of stages and restarts, or None if no throughput is known.
        restarts_always: processes end at every boundary, not only if the world size changes.
        notes: remarks about the plan, for the user.
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

    @property
    def extents(self) -> "tuple[StageExtent, ...]":
        """All stages of the run, including those in `passed`."""
        return (*self.passed, *self.stages)

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the run, or None if it has no end."""
        return (self.stages or self.passed)[-1].end_sample

    @property
    def end_step(self) -> int | None:
        """Optimiser steps of the whole run, or None if it has no end."""
        last = (self.stages or self.passed)[-1]
        return None if last.steps is None else last.first_step + last.steps

    @property
    def largest_world_size(self) -> int:
        """Processes of the largest stage in `stages`."""
        return max(stage.world_size for stage in self.stages)

    @property
    def is_piped(self) -> bool:
        """Whether the layers of the model are spread over a pipeline of ranks."""
        return self.fleet.parallel.pipeline > 1

    @property
    def number_of_stages(self) -> int:
        """Stages of the whole run, including those in `passed`."""
        return len(self.extents)

    @property
    def end_tokens(self) -> int | None:
        """Tokens of the whole run, or None if it has no end."""
        end = self.end_sample
        return None if end is None else self.tokens_at(end)

    def tokens_at(self, consumed_samples: int) -> int:
        """Returns the tokens in the first `consumed_samples` samples of the run."""
        return consumed_samples * self.sequence_length

    def samples_at(self, steps: int) -> int:
        """Returns the samples that the first `steps` optimiser steps of the run consume."""
        return self.ramp.samples_after(steps)

    def tokens_to(self, goal: Goal) -> int:
        """Returns the tokens of the run before a position."""
        if goal.unit == TOKENS:
            return goal.count
        samples = goal.count if goal.unit == SAMPLES else self.samples_at(goal.count)
        return self.tokens_at(samples)

    def begins_phase(self, consumed_samples: int) -> bool:
        """Returns whether the run or a phase of it begins after `consumed_samples`."""
        return consumed_samples == 0

    def of(self, stage: StageExtent) -> "TrainingPlan":  # noqa: ARG002
        """Returns the plan of a stage's phase: this one, in a run without phases."""
        return self

    def stage_at(self, consumed_samples: int) -> StagePlan:
        """Returns the stage of a step that starts after `consumed_samples`. O(log stages).

        Raises:
            UsageError: the stage does not fit the fleet.
        """
        index = bisect_right(self.stages, consumed_samples, key=attrgetter("first_sample")) - 1
        if index < 0:
            raise UsageError(
                f"the stage after {consumed_samples} samples does not fit"
                f" {self.fleet.num_nodes} nodes of {self.fleet.devices} processes",
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
        """Returns whether a stage's processes end after `consumed_samples` and others resume."""
        following = self.stage_at(consumed_samples)
        return following is not stage and restarts_at(
            stage.world_size, following.world_size, always=self.restarts_always
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

    def restarts(self) -> int:
        """Returns how often processes restart, or 0 if no clock is known."""
        if self.clock is None:
            return 0
        nodes = [stage.num_nodes for stage in self.stages]
        return count_restarts(nodes, always=self.restarts_always)

    def to_json(self) -> dict[str, Any]:
        """Returns the document of `rampcli plan --json`.

        Stages in `passed` have null for everything that depends on the fleet.
        """
        names = [field.name for field in fields(StagePlan)]
        return {
            "global_batch_size": self.global_batch_size,
            "semantics": self.semantics,
            "sequence_length": self.sequence_length,
            "restarts_always": self.restarts_always,
            "stages": [
                {name: getattr(stage, name, None) for name in names} for stage in self.extents
            ],
        }


def plan_training(
    *,
    batch: BatchSettings,
    fleet: Fleet,
    node_policy: str,
    nodes: Sequence[int] | None = None,
    sequence_length: int,
    length: RunLength | FirstEnd,
    throughput: Throughput | None = None,
    restart_s: float = 0.0,
    restarts_always: bool = True,
    consumed_samples: int = 0,
    may_be_over: bool = False,
) -> TrainingPlan:
    """Plans a run and checks every stage that is still to come against its own nodes.

    Args:
        batch: the batch, and how it changes.
        node_policy: name in `rampcli.batch.node_policies.NODE_POLICIES`.
        nodes: of each stage of the schedule, in place of a policy, or None.
        sequence_length: tokens per sample.
        length: where the run ends.
        throughput: of one GPU, or None if it is not known.
        restart_s: seconds that a restart of the processes takes.
        restarts_always: restart at every boundary, not only if the number of nodes changes.
        consumed_samples: progress of a resumed run. Stages that end before are not checked.
        may_be_over: whether all stages may have ended. Else, the last one is checked in any case.

    Raises:
        UsageError: everything that does not fit.
    """
    report = Report()
    with report.noting():
        length.check()
    with report.noting():
        layout, schedule = lay_out(
            batch,
            fleet=fleet,
            policy=policy_of(node_policy, nodes),
            sequence_length=sequence_length,
        )
    report.close()
    clock = Clock(
        throughput=throughput or UNTIMED.throughput,
        sequence_length=sequence_length,
        restart_s=restart_s if throughput else 0.0,
        restarts_always=restarts_always,
    )
    walked = _cut(schedule, length.steps(schedule, sequence_length=sequence_length))
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
    return TrainingPlan(
        global_batch_size=schedule.target,
        semantics=batch.semantics,
        sequence_length=sequence_length,
        stages=tuple(stages),
        ramp=schedule,
        fleet=fleet,
        micro_batch_rule=layout.micro_batch_rule,
        passed=tuple(walked[:passed]),
        clock=clock if throughput else None,
        restarts_always=restarts_always,
        notes=plan_notes(schedule, walked, length, sequence_length, unit=batch.unit),
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
