"""A planned batch, and how it is written in other systems' words."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import DECREASE_KEY
from rampcli.batch.step_schedule import to_entries
from rampcli.batch.training_plan import StagePlan, TrainingPlan
from rampcli.errors import shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A planned batch to translate.

    Attributes:
        rampup_batch_size: `[start, increment, samples]`, or None.
        step_batch_size_schedule: text of the setting, or None.
        data_parallel_shard_size: ranks that share one copy of the weights, or None for all.
        num_pipeline_microbatches: parts of a stage's micro batch, or None if not given.
        expansion_factor_real_data: hosts per reading host, or None if not given.
    """

    plan: TrainingPlan
    rampup_batch_size: list[int] | None = None
    step_batch_size_schedule: str | None = None
    data_parallel_shard_size: int | None = None
    num_pipeline_microbatches: int | None = None
    expansion_factor_real_data: float | None = None

    @property
    def ramp(self) -> list[int] | None:
        """The ramp, or None if the batch never changes."""
        return None if len(self.plan.ramp.thresholds) == 1 else self.rampup_batch_size

    @property
    def steps(self) -> str | None:
        """Thresholds of a step schedule in samples, or None without one."""
        has_steps = self.step_batch_size_schedule is not None
        return to_entries(self.plan.ramp.thresholds) if has_steps else None

    @property
    def stage(self) -> StagePlan:
        """The largest stage, on all the nodes if the run ends before the largest batch."""
        plan = self.plan
        stage = max(plan.stages, key=lambda stage: stage.global_batch_size)
        if plan.ramp.decreased or stage.global_batch_size >= max(plan.ramp.scheduled_sizes()):
            return stage
        nodes = plan.fleet.num_nodes
        return replace(
            stage,
            num_nodes=nodes,
            world_size=nodes * plan.fleet.devices,
            data_parallel_size=plan.fleet.data_parallel_size(nodes),
        )

    @property
    def micro_batch_size(self) -> int:
        """The largest micro batch that divides those of all stages, for systems that have one."""
        return gcd(*(stage.micro_batch_size for stage in self.plan.stages))

    def values(self) -> dict[str, object]:
        """Returns the batch by our keys, for systems with one micro batch."""
        plan, parallel = self.plan, self.plan.fleet.parallel
        return {
            MICRO_KEY: self.micro_batch_size,
            GLOBAL_KEY: plan.global_batch_size,
            RAMP_KEY: self.ramp,
            DECREASE_KEY: bool(plan.ramp.decreased) or None,
            "data.sequence_length": plan.sequence_length,
            "parallel.tensor_parallel_size": parallel.tensor,
            "parallel.pipeline_parallel_size": parallel.pipeline,
            "parallel.context_parallel_size": parallel.context,
            "trainer.num_nodes": self.stage.num_nodes,
            "trainer.devices": plan.fleet.devices,
            "trainer.max_steps": plan.end_step,
            "trainer.max_samples": plan.end_sample,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """A batch in another system's words.

    Attributes:
        words: arguments for the system's command line.
        unsaid: differences that these words cannot express, one sentence each.
    """

    words: tuple[str, ...]
    unsaid: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)


def to_assignments(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `name=value` words, without the values that are None."""
    return tuple(f"{name}={shown(value)}" for name, value in values.items() if value is not None)


def to_flags(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns `--name value` words, without the values that are None. A true one is `--name`."""
    words: list[str] = []
    for name, value in values.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return tuple(words)


def differences(
    source: Source,
    system: str,
    *,
    semantics: str = "megatron",
    has_steps: bool = False,
    has_micro_batches: bool = False,
    decreases: bool = False,
) -> tuple[str, ...]:
    """Returns what a system's words cannot express, one sentence each.

    Args:
        has_micro_batches: its stages may have different micro batches.
        decreases: it can decrease batches to fit one number of nodes.
    """
    plan = source.plan
    sizes = sorted({stage.micro_batch_size for stage in plan.stages})
    found = []
    if source.steps is not None and not has_steps:
        found.append(f"{system} has no step schedule; in samples it is {source.steps}")
    if source.ramp is not None and plan.semantics != semantics:
        found.append(
            f"{system} ramps by {semantics} semantics, so its stages begin at other samples"
        )
    if len(sizes) > 1 and not has_micro_batches:
        found.append(
            f"{system} has one micro batch, here {source.micro_batch_size};"
            f" these stages have {sizes[0]} to {sizes[-1]}"
        )
    if plan.ramp.decreased and not decreases:
        found.append(f"{system} cannot decrease batches that do not fit")
    elif plan.ramp.decreased and any(
        stage.num_nodes != plan.fleet.num_nodes for stage in plan.stages
    ):
        found.append(
            f"{system} decreases a batch to fit all the GPUs of a job;"
            " here each stage has its own nodes"
        )
    return tuple(found)
