"""What a translation starts from and what it yields."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from rampcli.batch.training_plan import StagePlan, TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A planned batch to translate.

    Attributes:
        plan: the run.
        stage: its largest stage.
        ramp: `[start, increment, samples]`, or None if the batch is not ramped.
        steps: thresholds of a step schedule in samples, as text, or None.
        data_parallel_shard_size: ranks that share one copy of the weights, or None for all.
        num_pipeline_microbatches: parts of a stage's micro batch, or None if not given.
        expansion_factor_real_data: hosts per reading host, or None if not given.
    """

    plan: TrainingPlan
    stage: StagePlan
    ramp: list[int] | None
    steps: str | None
    data_parallel_shard_size: int | None
    num_pipeline_microbatches: int | None
    expansion_factor_real_data: float | None

    @property
    def micro_batch_size(self) -> int:
        """The largest micro batch that divides those of all stages, for systems that have one."""
        return gcd(*(stage.micro_batch_size for stage in self.plan.stages))


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A batch in another system's words.

    Attributes:
        words: arguments for the system's command line.
        unsaid: differences that these words cannot express, one sentence each.
    """

    words: tuple[str, ...]
    unsaid: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


def to_assignments(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `name=value` words, without the values that are None."""
    return tuple(f"{name}={value}" for name, value in values.items() if value is not None)


def step_schedule_differences(source: Source, system: str) -> list[str]:
    """Returns the difference for a system without step schedules, if the source has one."""
    if source.steps is None:
        return []
    return [f"{system} has no step schedule; in samples it is {source.steps}"]


def semantics_differences(source: Source, system: str, semantics: str) -> list[str]:
    """Returns the difference for a system whose ramp has other semantics than the source's."""
    if source.ramp is None or source.plan.semantics == semantics:
        return []
    return [f"{system} ramps by {semantics} semantics, so its stages begin at other samples"]


def micro_batch_differences(source: Source, system: str) -> list[str]:
    """Returns the difference for a system with one micro batch, if the stages have several."""
    sizes = sorted({stage.micro_batch_size for stage in source.plan.stages})
    if len(sizes) == 1:
        return []
    return [
        f"{system} has one micro batch, here {source.micro_batch_size};"
        f" these stages have {sizes[0]} to {sizes[-1]}"
    ]


def decrease_differences(source: Source, system: str) -> list[str]:
    """Returns the difference for a system that cannot decrease batches, if the source does."""
    if not source.plan.ramp.decreased:
        return []
    return [f"{system} cannot decrease batches that do not fit"]


def node_differences(source: Source, system: str) -> list[str]:
    """Returns the difference for a system that decreases batches to fit one number of nodes."""
    plan = source.plan
    if not plan.ramp.decreased:
        return []
    if all(stage.num_nodes == plan.fleet.num_nodes for stage in plan.stages):
        return []
    return [
        f"{system} decreases a batch to fit all the GPUs of a job;"
        " here each stage has its own nodes"
    ]
