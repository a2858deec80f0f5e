"""One batch in the words of each system that people know, ready to be pasted there."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from rampcli.batch.step_schedule import to_text
from rampcli.batch.training_plan import StagePlan, TrainingPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The words for one system, and what its words cannot say."""

    words: tuple[str, ...]
    unsaid: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What of the settings a plan does not hold: `[start, increment, samples]`, thresholds in samples, and MaxText's own."""

    ramp: list[int] | None
    steps: str | None
    num_pipeline_microbatches: int | None
    expansion_factor_real_data: float | None


def dialects(
    plan: TrainingPlan,
    *,
    rampup_batch_size: list[int] | None,
    step_batch_size_schedule: str | None,
    num_pipeline_microbatches: int | None = None,
    expansion_factor_real_data: float | None = None,
) -> dict[str, Dialect]:
    """The batch of a plan, by the name of the system.

    Args:
        plan: the batch is the one at the end of its schedule.
        rampup_batch_size: `[start, increment, samples]`, or None.
        step_batch_size_schedule: as it was written, or None.
        num_pipeline_microbatches: of each stage's micro batch, where it was given.
        expansion_factor_real_data: one host in so many reads, where it was given.
    """
    stage = max(plan.stages, key=lambda stage: stage.global_batch_size)
    if not plan.ramp.decreased and stage.global_batch_size < max(
        plan.ramp.scheduled_sizes()
    ):  # the run ends before it gets there
        nodes = plan.fleet.num_nodes
        ranks = plan.fleet.data_parallel_size(nodes)
        stage = replace(
            stage, num_nodes=nodes, world_size=nodes * plan.fleet.devices, data_parallel_size=ranks
        )
    said = Said(
        ramp=None if len(plan.ramp.thresholds) == 1 else rampup_batch_size,
        steps=None
        if step_batch_size_schedule is None
        else to_text(plan.ramp.thresholds).removeprefix("samples: "),
        num_pipeline_microbatches=num_pipeline_microbatches,
        expansion_factor_real_data=expansion_factor_real_data,
    )
    return {name: write(plan, stage, said) for name, write in DIALECTS.items()}


def _nemo_1(plan: TrainingPlan, stage: StagePlan, said: Said) -> Dialect:
    return _nemo(
        plan,
        stage,
        said,
        data="model",
        strategy="model",
        sequence_length="model.encoder_seq_length",
    )


def _nemo_2(plan: TrainingPlan, stage: StagePlan, said: Said) -> Dialect:
    return _nemo(
        plan,
        stage,
        said,
        data="data",
        strategy="trainer.strategy",
        sequence_length="data.seq_length",
    )


def _nemo(
    plan: TrainingPlan,
    stage: StagePlan,
    said: Said,
    *,
    data: str,
    strategy: str,
    sequence_length: str,
) -> Dialect:
    words = {
        f"{data}.micro_batch_size": stage.micro_batch_size,
        f"{data}.global_batch_size": plan.global_batch_size,
        f"{data}.rampup_batch_size": None
        if said.ramp is None
        else f"[{','.join(map(str, said.ramp))}]",
        sequence_length: plan.sequence_length,
        f"{strategy}.tensor_model_parallel_size": plan.fleet.parallel.tensor,
        f"{strategy}.pipeline_model_parallel_size": plan.fleet.parallel.pipeline,
        f"{strategy}.context_parallel_size": plan.fleet.parallel.context,
        "trainer.num_nodes": stage.num_nodes,
        "trainer.devices": plan.fleet.devices,
        "trainer.max_steps": plan.end_step,
    }
    unsaid = [
        *_no_step_schedule(said, "NeMo"),
        *_other_ramp(plan, said, "megatron", "NeMo"),
        *_no_decrease(plan, "NeMo"),
    ]
    return Dialect(words=_assignments(words), unsaid=tuple(unsaid))


def _megatron(plan: TrainingPlan, stage: StagePlan, said: Said) -> Dialect:
    changes = said.ramp is not None or said.steps is not None
    words = {
        "micro-batch-size": stage.micro_batch_size,
        "global-batch-size": None if said.steps else plan.global_batch_size,
        "rampup-batch-size": said.ramp,
        "step-batch-size-schedule": None if said.steps is None else _in_tokens(plan),
        "decrease-batch-size-if-needed": [] if plan.ramp.decreased else None,
        "seq-length": plan.sequence_length,
        "tensor-model-parallel-size": plan.fleet.parallel.tensor,
        "pipeline-model-parallel-size": plan.fleet.parallel.pipeline,
        "context-parallel-size": plan.fleet.parallel.context,
        "train-samples": plan.end_sample if changes else None,
        "train-iters": None if changes else plan.end_step,
    }
    flags: list[str] = []
    for name, value in words.items():
        if value is not None:
            flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    unsaid = _other_ramp(plan, said, "megatron", "Megatron-LM")
    if plan.ramp.decreased and any(one.num_nodes != plan.fleet.num_nodes for one in plan.stages):
        unsaid.append(
            "Megatron-LM decreases to what divides on all the GPUs of a job; here every stage has nodes of its own"
        )
    if said.ramp is not None and not plan.ramp.decreased:
        unsaid.append(
            f"after core 0.17 --rampup-batch-size is gone; in its place --step-batch-size-schedule {_in_tokens(plan)!r}"
        )
    return Dialect(words=tuple(flags), unsaid=tuple(unsaid))


def _maxtext(plan: TrainingPlan, stage: StagePlan, said: Said) -> Dialect:
    devices = stage.world_size
    per_device = Fraction(plan.global_batch_size, devices)
    micro_batches = max(
        1, plan.global_batch_size // (stage.micro_batch_size * stage.data_parallel_size)
    )
    accumulate = 1 if said.ramp else micro_batches
    words = {
        "per_device_batch_size": per_device / accumulate,
        "gradient_accumulation_steps": accumulate,
        "enable_rampup_batch_size": "true" if said.ramp else None,
        "per_device_batch_size_start": Fraction(said.ramp[0], devices) if said.ramp else None,
        "per_device_batch_size_increment": Fraction(said.ramp[1], devices) if said.ramp else None,
        "global_rampup_samples": said.ramp[2] if said.ramp else None,
        "num_pipeline_microbatches": said.num_pipeline_microbatches,
        "expansion_factor_real_data": said.expansion_factor_real_data,
        "max_target_length": plan.sequence_length,
        "steps": plan.end_step,
    }
    axes = {
        "tensor": plan.fleet.parallel.tensor,
        "pipeline": plan.fleet.parallel.pipeline,
        "context": plan.fleet.parallel.context,
    }
    words |= {f"ici_{axis}_parallelism": size for axis, size in axes.items() if size > 1}
    unsaid = [
        *_no_step_schedule(said, "MaxText"),
        *_other_ramp(plan, said, "maxtext", "MaxText"),
        *_no_decrease(plan, "MaxText"),
    ]
    if said.ramp and micro_batches > 1:
        unsaid.append(
            f"MaxText takes a step's samples in one pass; here each rank takes {micro_batches} micro batches"
        )
    stages = plan.fleet.parallel.pipeline
    pieces, per_pass = (
        said.num_pipeline_microbatches or stages,
        plan.global_batch_size // accumulate,
    )
    if stages > 1 and per_pass % pieces:
        unsaid.append(
            f"MaxText's pipeline takes a pass in {pieces} parts, and {per_pass} samples do not divide into them"
        )
    for name, value in words.items():
        if isinstance(value, Fraction) and Fraction(str(float(value))) != value:
            unsaid.append(f"{name} is exactly {value}, which has no decimal")
        elif isinstance(value, Fraction) and int(devices * float(value)) != devices * value:
            unsaid.append(
                f"MaxText truncates {devices} x {name}={float(value)} to {int(devices * float(value))}"
            )
    return Dialect(
        words=_assignments(
            {
                name: float(value) if isinstance(value, Fraction) else value
                for name, value in words.items()
            }
        ),
        unsaid=tuple(unsaid),
    )


DIALECTS: dict[str, Callable[[TrainingPlan, StagePlan, Said], Dialect]] = {
    "NeMo 1": _nemo_1,
    "NeMo 2": _nemo_2,
    "Megatron-LM": _megatron,
    "MaxText": _maxtext,
}


def _assignments(words: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in words.items() if value is not None)


def _in_tokens(plan: TrainingPlan) -> str:
    return " ".join(
        f"{threshold.first_sample * plan.sequence_length}:{threshold.global_batch_size}"
        for threshold in plan.ramp.thresholds
    )


def _no_step_schedule(said: Said, system: str) -> list[str]:
    return (
        []
        if said.steps is None
        else [f"{system} has no step schedule; in samples it is {said.steps}"]
    )


def _other_ramp(plan: TrainingPlan, said: Said, semantics: str, system: str) -> list[str]:
    if said.ramp is None or plan.semantics == semantics:
        return []
    return [f"{system} counts its ramp by the rule {semantics}: its stages begin at other samples"]


def _no_decrease(plan: TrainingPlan, system: str) -> list[str]:
    return [f"{system} decreases no batch that does not fit"] if plan.ramp.decreased else []
