"""The whole run, planned before it starts: every stage with its batch, its nodes and its steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from rampcli.batch.nodes import POLICY_KEY, Clock, Fleet, Work, schedule_nodes
from rampcli.batch.notes import plan_notes
from rampcli.batch.plan import BatchPlan, complete_sizes
from rampcli.batch.ramp import RAMP_KEY, SEMANTICS_KEY, RampSchedule, RampStage
from rampcli.batch.remedies import Layout, refuse_stages, remedies, targets
from rampcli.batch.run_settings import DECREASE_KEY, BatchSettings, RampSettings, RunLength
from rampcli.batch.step_schedule import SCHEDULE_KEY, from_step_schedule
from rampcli.batch.throughput import Throughput
from rampcli.errors import Report, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedStage:
    """A stage that was trained before, by a fleet that may not be today's. Counts are from the start of the run."""

    stage: int
    global_batch_size: int
    first_sample: int
    samples: int | None
    first_step: int
    steps: int | None

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at which the stage is over; None where it is open."""
        return None if self.samples is None else self.first_sample + self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan(PassedStage):
    """One stage of the run, and what it runs on. `samples` and `steps` are None in an open last stage."""

    num_nodes: int
    world_size: int
    data_parallel_size: int
    micro_batch_size: int
    accumulate_grad_batches: int


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The stages that run, in order. Sizes in samples, `sequence_length` in tokens.

    Attributes:
        passed: stages that are wholly consumed and do not fit today's fleet; empty at the start of a run.
        stages: the others.
        clock: how long stages and restarts take; None where no throughput is known.
        restarts_always: whether processes end at every boundary, not only where the next stage needs more or fewer.
    """

    global_batch_size: int
    semantics: str
    sequence_length: int
    stages: tuple[StagePlan, ...]
    ramp: RampSchedule
    fleet: Fleet
    passed: tuple[PassedStage, ...] = ()
    clock: Clock | None = None
    restarts_always: bool = True
    notes: tuple[str, ...] = ()

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the run; None where it has no end."""
        return self.stages[-1].end_sample

    @property
    def end_step(self) -> int | None:
        """Optimiser steps of the whole run; None where it has no end."""
        last = self.stages[-1]
        return None if last.steps is None else last.first_step + last.steps

    @property
    def largest_world_size(self) -> int:
        """Processes of the largest stage that is to run."""
        return max(stage.world_size for stage in self.stages)

    @property
    def number_of_stages(self) -> int:
        """Stages of the whole run, passed ones too."""
        return len(self.passed) + len(self.stages)

    @cached_property
    def _first_samples(self) -> list[int]:
        return [stage.first_sample for stage in self.stages]

    def stage_at(self, consumed_samples: int) -> StagePlan:
        """The stage of the step that starts after `consumed_samples`. O(log stages).

        Raises:
            UsageError: that stage does not fit today's fleet.
        """
        index = bisect_right(self._first_samples, consumed_samples) - 1
        if index < 0:
            raise UsageError(
                f"the stage after {consumed_samples} samples does not fit {self.fleet.num_nodes} nodes of {self.fleet.devices} processes",
                keys=("trainer.num_nodes", "trainer.devices"),
                remedy="the nodes and the micro batch that it was trained with",
            )
        return self.stages[index]

    def stage_number(self, number: int) -> PassedStage:
        """A stage by its number, from 0."""
        return (*self.passed, *self.stages)[number]

    def is_complete(self, consumed_samples: int) -> bool:
        """Whether the run is over once `consumed_samples` are consumed."""
        return self.end_sample is not None and consumed_samples >= self.end_sample

    def ends_processes(self, stage: StagePlan, consumed_samples: int) -> bool:
        """Whether the processes that train a stage end once so many samples are consumed, for others to go on."""
        ahead = self.stage_at(consumed_samples)
        return ahead is not stage and (self.restarts_always or ahead.world_size != stage.world_size)

    def stages_by_processes(self) -> list[tuple[StagePlan, ...]]:
        """The stages, in groups that the same processes train."""
        groups: list[tuple[StagePlan, ...]] = []
        for stage in self.stages:
            if groups and not self.ends_processes(groups[-1][-1], stage.first_sample):
                groups[-1] += (stage,)
            else:
                groups.append((stage,))
        return groups

    def batch_on(self, stage: StagePlan, world_size: int) -> BatchPlan:
        """How a stage's batch runs on a world that is not the scheduled one.

        Raises:
            UsageError: it does not divide.
        """
        return BatchPlan.divide(
            stage.global_batch_size,
            micro_batch_size=stage.micro_batch_size,
            data_parallel_size=self.fleet.parallel.data_parallel_size(world_size),
        )

    def stage_s(self, stage: StagePlan) -> float | None:
        """Seconds that a stage takes; None where it has no end or no throughput is known."""
        if self.clock is None or stage.samples is None:
            return None
        work = Work(global_batch_size=stage.global_batch_size, samples=stage.samples)
        return self.clock.stage_s(
            work, stage.num_nodes, micro_batch_size=stage.micro_batch_size, fleet=self.fleet
        )

    def restarts(self) -> int:
        """Boundaries at which processes start anew."""
        return (
            0
            if self.clock is None
            else self.clock.restarts([stage.num_nodes for stage in self.stages])
        )

    def to_json(self) -> dict[str, Any]:
        """The contract of `rampcli plan --json`. A passed stage has null where another fleet trained it."""
        nothing = {field.name: None for field in fields(StagePlan)}
        return {
            "global_batch_size": self.global_batch_size,
            "semantics": self.semantics,
            "sequence_length": self.sequence_length,
            "stages": [
                *(nothing | asdict(stage) for stage in self.passed),
                *(asdict(stage) for stage in self.stages),
            ],
        }


def plan_training(
    *,
    batch: BatchSettings,
    ramp: RampSettings,
    fleet: Fleet,
    node_policy: str,
    sequence_length: int,
    length: RunLength,
    throughput: Throughput | None = None,
    restart_s: float = 0.0,
    restarts_always: bool = True,
    consumed_samples: int = 0,
) -> TrainingPlan:
    """Plan a run and check every stage that is still to come against its own nodes.

    Args:
        batch: the batch where it is largest.
        ramp: how it gets there.
        fleet: what there is to run on.
        node_policy: how many nodes each stage gets (`rampcli.batch.nodes`).
        sequence_length: tokens per sample.
        length: where the run ends.
        throughput: of one GPU, where it is known.
        restart_s: seconds that a restart of the processes takes.
        restarts_always: at every boundary, not only where the number of nodes changes.
        consumed_samples: where a resumed run stands; stages before that are not checked.

    Raises:
        UsageError: all that does not fit, together.
    """
    report = Report()
    with report.noting():
        length.check()
    with report.noting():
        layout, schedule = _lay_out(
            batch, ramp, fleet=fleet, node_policy=node_policy, sequence_length=sequence_length
        )
    report.close()
    sizes = schedule.scheduled_sizes()
    unit_clock = Clock(
        throughput=throughput or Throughput(points=((1, 1.0),), basis=""),
        sequence_length=sequence_length,
        restart_s=restart_s if throughput else 0.0,
        restarts_always=restarts_always,
    )
    walked = _until(schedule, length.steps(schedule, sequence_length=sequence_length))
    works = [
        Work(global_batch_size=layout.scheduled_by(stage), samples=stage.samples)
        for stage in walked
    ]
    nodes = schedule_nodes(
        node_policy,
        works,
        sizes,
        micro_batch_size=layout.micro_batch_size,
        fleet=fleet,
        clock=unit_clock,
    )
    nodes = [
        layout.decreased_nodes.get(stage.scheduled_batch_size, n)
        for stage, n in zip(walked, nodes, strict=True)
    ]
    behind = sum(
        stage.end_sample is not None and stage.end_sample <= consumed_samples
        for stage in walked[:-1]
    )
    _check_fit(layout, walked, nodes, behind=behind, sizes=sizes)
    passed = max((index + 1 for index in range(behind) if nodes[index] is None), default=0)
    stages = [
        _stage(index, stage, num_nodes=n, micro_batch_size=layout.micro_batch_size, fleet=fleet)
        for index, (stage, n) in enumerate(zip(walked, nodes, strict=True))
        if index >= passed and n is not None
    ]
    _check_accumulation(batch, stages, schedule)
    return TrainingPlan(
        global_batch_size=schedule.target,
        semantics=ramp.semantics,
        sequence_length=sequence_length,
        stages=tuple(stages),
        ramp=schedule,
        fleet=fleet,
        passed=tuple(
            PassedStage(**_counts(index, stage)) for index, stage in enumerate(walked[:passed])
        ),
        clock=unit_clock if throughput else None,
        restarts_always=restarts_always,
        notes=plan_notes(schedule, walked, length, sequence_length),
    )


def _check_fit(
    layout: Layout,
    walked: Sequence[RampStage],
    nodes: Sequence[int | None],
    *,
    behind: int,
    sizes: Sequence[int],
) -> None:
    """The largest batch is what was asked for on all the nodes, and every stage still to come has nodes."""
    report, fleet = Report(), layout.fleet
    runs = sizes[-1] in {stage.scheduled_batch_size for stage in walked[behind:]}
    of_target = (
        layout.ramp is not None or len(sizes) == 1
    )  # else the sizes are written down, and each is a stage's
    if (
        runs and of_target and layout.node_policy != "best" and not layout.decreases
    ):  # these give the largest batch all the nodes
        with report.noting():
            try:
                BatchPlan.solve(
                    global_batch_size=sizes[-1],
                    micro_batch_size=layout.micro_batch_size,
                    accumulate_grad_batches=layout.accumulate_grad_batches,
                    data_parallel_size=fleet.data_parallel_size(fleet.num_nodes),
                )
            except UsageError as error:
                if layout.accumulate_grad_batches is not None:
                    raise
                if len(sizes) > 1:
                    error.remedy = (
                        ", or ".join([*targets(layout), *remedies(sizes, layout)]) or error.remedy
                    )
                elif replace(layout, node_policy="best").fits(sizes):
                    error.remedy = f"{error.remedy}, or {POLICY_KEY}=best"
                raise
    refused = {sizes[-1]} if report.errors else set()
    with report.noting():
        refuse_stages(
            walked,
            nodes,
            ahead=range(behind, len(walked)),
            sizes=sizes,
            already=refused,
            layout=layout,
        )
    report.close()


def _lay_out(
    batch: BatchSettings,
    ramp: RampSettings,
    *,
    fleet: Fleet,
    node_policy: str,
    sequence_length: int,
) -> tuple[Layout, RampSchedule]:
    """The micro batch and the schedule, with decreased batch sizes where that was asked for."""
    report = Report()
    schedule = None
    largest = batch.global_batch_size
    if ramp.step_batch_size_schedule is not None:
        _check_step_schedule(ramp)
        schedule = from_step_schedule(
            ramp.step_batch_size_schedule, sequence_length=sequence_length
        )
        _check_last_size(schedule, batch)
        largest = schedule.scheduled_sizes()[-1]
    with report.noting():
        data_parallel_size = fleet.data_parallel_size(fleet.num_nodes)
        given = {
            "micro_batch_size": batch.micro_batch_size,
            "accumulate_grad_batches": batch.accumulate_grad_batches,
        }
        largest, micro_batch_size = complete_sizes(
            global_batch_size=largest, data_parallel_size=data_parallel_size, **given
        )
    if schedule is None and largest is not None:
        with report.noting():
            schedule = RampSchedule.from_rampup(
                ramp.rampup_batch_size, global_batch_size=largest, semantics=ramp.semantics
            )
    report.close()
    assert schedule is not None
    layout = Layout(
        ramp=ramp.rampup_batch_size,
        target=schedule.target,
        micro_batch_size=micro_batch_size,
        accumulate_grad_batches=batch.accumulate_grad_batches,
        fleet=fleet,
        node_policy=node_policy,
    )
    if ramp.decrease_batch_size_if_needed:
        if ramp.semantics != "megatron":
            raise UsageError(
                f"{DECREASE_KEY}=true is Megatron's, and {SEMANTICS_KEY}={ramp.semantics} knows no decreased batch",
                keys=(DECREASE_KEY, SEMANTICS_KEY),
                remedy=f"{DECREASE_KEY}=false, or {SEMANTICS_KEY}=megatron",
            )
        layout, decreased = layout.decreasing(schedule.scheduled_sizes())
        schedule = schedule.with_decreased(decreased)
    return layout, schedule


def _check_step_schedule(ramp: RampSettings) -> None:
    if ramp.rampup_batch_size is not None:
        raise UsageError(
            f"the batch is scheduled twice: {RAMP_KEY} and {SCHEDULE_KEY}",
            keys=(RAMP_KEY, SCHEDULE_KEY),
            remedy="null for one of them",
        )
    if ramp.decrease_batch_size_if_needed:
        raise UsageError(
            f"{DECREASE_KEY}=true does not go with {SCHEDULE_KEY}: its sizes are written down",
            keys=(DECREASE_KEY, SCHEDULE_KEY),
            remedy=f"{DECREASE_KEY}=false",
        )


def _check_last_size(schedule: RampSchedule, batch: BatchSettings) -> None:
    if batch.global_batch_size not in (None, schedule.target):
        raise UsageError(
            f"{SCHEDULE_KEY} ends at {schedule.target}, and model.global_batch_size={batch.global_batch_size}",
            keys=(SCHEDULE_KEY, "model.global_batch_size"),
            remedy=f"model.global_batch_size={schedule.target}, or null",
        )


def _until(schedule: RampSchedule, end_step: int | None) -> list[RampStage]:
    """The stages that start before the run ends, the last one cut there."""
    if end_step is None:
        return list(schedule.stages)
    stages = [stage for stage in schedule.stages if stage.first_step < end_step]
    last = stages[-1]
    steps_left = end_step - last.first_step
    stages[-1] = replace(
        last, steps=steps_left if last.steps is None else min(last.steps, steps_left)
    )
    return stages


def _counts(index: int, stage: RampStage) -> dict[str, Any]:
    return {
        "stage": index,
        "global_batch_size": stage.global_batch_size,
        "first_sample": stage.first_sample,
        "samples": stage.samples,
        "first_step": stage.first_step,
        "steps": stage.steps,
    }


def _stage(
    index: int, stage: RampStage, *, num_nodes: int, micro_batch_size: int, fleet: Fleet
) -> StagePlan:
    batch = BatchPlan.divide(
        stage.global_batch_size,
        micro_batch_size=micro_batch_size,
        data_parallel_size=fleet.data_parallel_size(num_nodes),
    )
    return StagePlan(
        **_counts(index, stage),
        num_nodes=num_nodes,
        world_size=num_nodes * fleet.devices,
        data_parallel_size=batch.data_parallel_size,
        micro_batch_size=micro_batch_size,
        accumulate_grad_batches=batch.accumulate_grad_batches,
    )


def _check_accumulation(
    batch: BatchSettings, stages: Sequence[StagePlan], schedule: RampSchedule
) -> None:
    largest = max(stages, key=lambda stage: stage.global_batch_size)
    if largest.global_batch_size == max(stage.global_batch_size for stage in schedule.stages):
        BatchPlan(
            global_batch_size=largest.global_batch_size,
            micro_batch_size=largest.micro_batch_size,
            data_parallel_size=largest.data_parallel_size,
            accumulate_grad_batches=largest.accumulate_grad_batches,
        ).check_accumulation(batch.accumulate_grad_batches)
