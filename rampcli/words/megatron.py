"""Megatron-LM: a plan in its words. Its words are NeMo's, so it has no spellings of its own."""

from rampcli.batch.step_schedule import to_entries
from rampcli.words.translation import (
    Source,
    Translation,
    micro_batch_differences,
    node_differences,
    semantics_differences,
)


def write(source: Source) -> Translation:
    """Returns a batch as arguments of Megatron-LM's `pretrain_gpt.py`."""
    plan, parallel = source.plan, source.plan.fleet.parallel
    batch_changes = source.ramp is not None or source.steps is not None
    arguments: dict[str, object] = {
        "micro-batch-size": source.micro_batch_size,
        "global-batch-size": None if source.steps else plan.global_batch_size,
        "rampup-batch-size": source.ramp,
        "step-batch-size-schedule": _thresholds_in_tokens(source) if source.steps else None,
        "decrease-batch-size-if-needed": [] if plan.ramp.decreased else None,
        "seq-length": plan.sequence_length,
        "tensor-model-parallel-size": parallel.tensor,
        "pipeline-model-parallel-size": parallel.pipeline,
        "context-parallel-size": parallel.context,
        "train-samples": plan.end_sample if batch_changes else None,
        "train-iters": None if batch_changes else plan.end_step,
    }
    words: list[str] = []
    for name, value in arguments.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return Translation(words=tuple(words), unsaid=tuple(_differences(source)))


def _differences(source: Source) -> list[str]:
    plan = source.plan
    differences = [
        *semantics_differences(source, "Megatron-LM", "megatron"),
        *micro_batch_differences(source, "Megatron-LM"),
        *node_differences(source, "Megatron-LM"),
    ]
    if source.ramp is not None and not plan.ramp.decreased:
        differences.append(
            "Megatron core after 0.17 has no --rampup-batch-size;"
            f" use --step-batch-size-schedule {_thresholds_in_tokens(source)!r}"
        )
    return differences


def _thresholds_in_tokens(source: Source) -> str:
    """Returns a step schedule. Megatron-LM refuses two batch sizes at one threshold."""
    thresholds = source.plan.ramp.distinct_thresholds()
    return to_entries(thresholds, per_sample=source.plan.sequence_length)
