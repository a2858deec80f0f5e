"""NeMo 1 and NeMo 2: their spellings of our keys, and a plan in their words."""

from rampcli.words.translation import (
    Source,
    Translation,
    decrease_differences,
    micro_batch_differences,
    semantics_differences,
    step_schedule_differences,
    to_assignments,
)

SPELLINGS: dict[str, str] = {
    # NeMo 2: the data module holds the batch sizes.
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    # NeMo 1: the model holds everything.
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
    # NeMo 2: MegatronStrategy.
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
}


def write_nemo_1(source: Source) -> Translation:
    """Returns a batch in NeMo 1's words."""
    return _write(
        source, data="model", strategy="model", sequence_length="model.encoder_seq_length"
    )


def write_nemo_2(source: Source) -> Translation:
    """Returns a batch in NeMo 2's words."""
    return _write(
        source, data="data", strategy="trainer.strategy", sequence_length="data.seq_length"
    )


def _write(source: Source, *, data: str, strategy: str, sequence_length: str) -> Translation:
    """Returns a batch, with the names under which a version of NeMo keeps each group of keys."""
    plan, stage, parallel = source.plan, source.stage, source.plan.fleet.parallel
    ramp = None if source.ramp is None else f"[{','.join(map(str, source.ramp))}]"
    words = {
        f"{data}.micro_batch_size": source.micro_batch_size,
        f"{data}.global_batch_size": plan.global_batch_size,
        f"{data}.rampup_batch_size": ramp,
        sequence_length: plan.sequence_length,
        f"{strategy}.tensor_model_parallel_size": parallel.tensor,
        f"{strategy}.pipeline_model_parallel_size": parallel.pipeline,
        f"{strategy}.context_parallel_size": parallel.context,
        "trainer.num_nodes": stage.num_nodes,
        "trainer.devices": plan.fleet.devices,
        "trainer.max_steps": plan.end_step,
    }
    differences = [
        *step_schedule_differences(source, "NeMo"),
        *semantics_differences(source, "NeMo", "megatron"),
        *micro_batch_differences(source, "NeMo"),
        *decrease_differences(source, "NeMo"),
    ]
    return Translation(words=to_assignments(words), unsaid=tuple(differences))
