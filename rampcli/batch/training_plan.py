"""The whole run, planned before it starts: every stage with its batch, its nodes and its steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rampcli.batch.nodes import Fleet, NodeSchedule
from rampcli.batch.plan import MICRO_KEY, BatchPlan
from rampcli.batch.ramp import RAMP_KEY, RampSchedule, RampStage
from rampcli.errors import UsageError

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_samples", "trainer.max_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """Where the run ends: at most one of the three is given; none is a run without end. A run ends with a whole step."""

    max_steps: int | None = None
    max_samples: int | None = None
    max_tokens: int | None = None

    def steps(self, ramp: RampSchedule, *, sequence_length: int) -> int | None:
        """Optimiser steps of the whole run, or None where it has no end.

        Raises:
            UsageError: two ends are given, or one that is less than one.
        """
        values = (self.max_steps, self.max_samples, self.max_tokens)
        given = {key: value for key, value in zip(LENGTH_KEYS, values, strict=True) if value is not None}
        if len(given) > 1:
            shown = " and ".join(f"{key}={value}" for key, value in given.items())
            raise UsageError(f"the run has two ends: {shown}", keys=tuple(given), remedy="one of them")
        for key, value in given.items():
            if value < 1:
                raise UsageError(f"{key}={value} is less than one", keys=(key,), remedy=f"{key}=1 or more")
        if self.max_tokens is not None:
            return ramp.steps_to(-(-self.max_tokens // sequence_length))
        return self.max_steps if self.max_samples is None else ramp.steps_to(self.max_samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One stage of the run. `samples` and `steps` are None in an open last stage; the rest are counts from the start of the run."""

    stage: int
    global_batch_size: int
    first_sample: int
    samples: int | None
    first_step: int
    steps: int | None
    num_nodes: int
    world_size: int
    data_parallel_size: int
    micro_batch_size: int
    accumulate_grad_batches: int

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at which the stage is over; None where it is open."""
        return None if self.samples is None else self.first_sample + self.samples


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The stages that run, in order. Sizes in samples, `sequence_length` in tokens."""

    global_batch_size: int
    semantics: str
    sequence_length: int
    stages: tuple[StagePlan, ...]
    ramp: RampSchedule
    fleet: Fleet
    notes: tuple[str, ...] = ()

    @property
    def end_sample(self) -> int | None:
        """Consumed samples at the end of the run; None where it has no end."""
        return self.stages[-1].end_sample

    @cached_property
    def _first_samples(self) -> list[int]:
        return [stage.first_sample for stage in self.stages]

    def stage_at(self, consumed_samples: int) -> StagePlan:
        """The stage of the step that starts after `consumed_samples`. O(log stages)."""
        return self.stages[bisect_right(self._first_samples, consumed_samples) - 1]

    def is_complete(self, consumed_samples: int) -> bool:
        """Whether the run is over once `consumed_samples` are consumed."""
        return self.end_sample is not None and consumed_samples >= self.end_sample

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

    def to_json(self) -> dict[str, Any]:
        """The contract of `rampcli plan --json`."""
        return {
            "global_batch_size": self.global_batch_size,
            "semantics": self.semantics,
            "sequence_length": self.sequence_length,
            "stages": [asdict(stage) for stage in self.stages],
        }


def plan_training(
    *,
    rampup_batch_size: Sequence[int] | None,
    global_batch_size: int | None,
    micro_batch_size: int | None,
    accumulate_grad_batches: int | None,
    fleet: Fleet,
    node_policy: str,
    sequence_length: int,
    length: RunLength,
) -> TrainingPlan:
    """Plan a run and check every stage of it against its own nodes.

    Raises:
        UsageError: the first thing that does not fit.
    """
    target = BatchPlan.solve(
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        accumulate_grad_batches=accumulate_grad_batches,
        data_parallel_size=fleet.parallel.data_parallel_size(fleet.num_nodes * fleet.devices),
    )
    ramp = RampSchedule.from_rampup(rampup_batch_size, global_batch_size=target.global_batch_size)
    sizes = ramp.nominal_sizes()
    nodes = NodeSchedule.for_ramp(sizes, policy=node_policy, micro_batch_size=target.micro_batch_size, fleet=fleet)
    end_step = length.steps(ramp, sequence_length=sequence_length)

    stages: list[StagePlan] = []
    for ramp_stage in ramp.stages:
        if end_step is not None and ramp_stage.first_step >= end_step:
            break
        steps = ramp_stage.steps
        if end_step is not None and (steps is None or ramp_stage.first_step + steps > end_step):
            steps = end_step - ramp_stage.first_step
        num_nodes = nodes.nodes_for(ramp_stage.global_batch_size)
        batch = _stage_batch(ramp_stage, len(stages), micro_batch_size=target.micro_batch_size, fleet=fleet, num_nodes=num_nodes)
        stages.append(
            StagePlan(
                stage=len(stages),
                global_batch_size=batch.global_batch_size,
                first_sample=ramp_stage.first_sample,
                samples=None if steps is None else steps * batch.global_batch_size,
                first_step=ramp_stage.first_step,
                steps=steps,
                num_nodes=num_nodes,
                world_size=num_nodes * fleet.devices,
                data_parallel_size=batch.data_parallel_size,
                micro_batch_size=batch.micro_batch_size,
                accumulate_grad_batches=batch.accumulate_grad_batches,
            )
        )
    return TrainingPlan(
        global_batch_size=target.global_batch_size,
        semantics="megatron",
        sequence_length=sequence_length,
        stages=tuple(stages),
        ramp=ramp,
        fleet=fleet,
        notes=_notes(ramp, stages, length, sequence_length),
    )


def _stage_batch(ramp_stage: RampStage, index: int, *, micro_batch_size: int, fleet: Fleet, num_nodes: int) -> BatchPlan:
    data_parallel_size = fleet.parallel.data_parallel_size(num_nodes * fleet.devices)
    samples_per_micro_step = micro_batch_size * data_parallel_size
    size = ramp_stage.global_batch_size
    if size % samples_per_micro_step and ramp_stage.steps is not None:
        raise UsageError(
            f"stage {index} of the ramp, batch size {size}, does not divide into {MICRO_KEY}={micro_batch_size}"
            f" x {data_parallel_size} data-parallel ranks = {samples_per_micro_step} on {num_nodes} node{'s' if num_nodes > 1 else ''}",
            keys=(RAMP_KEY, MICRO_KEY, "rampup.node_policy", "trainer.num_nodes", "trainer.devices"),
            remedy=f"batch sizes that are multiples of {samples_per_micro_step}, or another rampup.node_policy",
        )
    return BatchPlan.divide(size, micro_batch_size=micro_batch_size, data_parallel_size=data_parallel_size)


def _notes(ramp: RampSchedule, stages: Sequence[StagePlan], length: RunLength, sequence_length: int) -> tuple[str, ...]:
    notes = []
    walked = {stage.global_batch_size for stage in ramp.stages}
    if skipped := [size for size in ramp.nominal_sizes() if size not in walked]:
        notes.append(f"skipped, because their share of the ramp is shorter than one batch: {', '.join(map(str, skipped))}")
    end = stages[-1].end_sample
    if end is not None and stages[-1].global_batch_size < ramp.target:
        notes.append(f"the run ends before the ramp reaches its target {ramp.target}")
    if end is not None and length.max_samples is not None and end > length.max_samples:
        notes.append(f"a run ends with a whole step: {end} samples, not trainer.max_samples={length.max_samples}")
    if end is not None and length.max_tokens is not None and end * sequence_length > length.max_tokens:
        notes.append(f"a run ends with a whole step: {end * sequence_length} tokens, not trainer.max_tokens={length.max_tokens}")
    return tuple(notes)
