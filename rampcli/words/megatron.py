"""Megatron-LM: a plan in its words. Its words are NeMo's, so it has no spellings of its own."""

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.position import STEPS
from rampcli.batch.step_schedule import SCHEDULE_KEY, threshold_unit, to_entries
from rampcli.words.translation import Source, Translation, differences, to_flags

ARGUMENTS: dict[str, str] = {
    "micro-batch-size": "data.micro_batch_size",
    "global-batch-size": "model.global_batch_size",
    "rampup-batch-size": "model.rampup_batch_size",
    "step-batch-size-schedule": "model.step_batch_size_schedule",
    "decrease-batch-size-if-needed": "rampup.decrease_batch_size_if_needed",
    "seq-length": "data.sequence_length",
    "tensor-model-parallel-size": "parallel.tensor_parallel_size",
    "pipeline-model-parallel-size": "parallel.pipeline_parallel_size",
    "context-parallel-size": "parallel.context_parallel_size",
    "train-samples": "trainer.max_samples",
    "train-iters": "trainer.max_steps",
}
"""Our key for each argument of `pretrain_gpt.py`."""


def write(source: Source) -> Translation:
    """Returns a batch as arguments of Megatron-LM's `pretrain_gpt.py`."""
    plan, values = source.plan, source.values()
    # Megatron-LM refuses two batch sizes at one threshold.
    thresholds = to_entries(plan.ramp.distinct_thresholds(), per_sample=plan.sequence_length)
    if source.steps is not None:
        values |= {GLOBAL_KEY: None, SCHEDULE_KEY: thresholds}
    batch_changes = source.ramp is not None or source.steps is not None
    values["trainer.max_steps" if batch_changes else "trainer.max_samples"] = None
    unsaid = differences(source, "Megatron-LM", has_steps=True, decreases=True)
    if source.ramp is not None and not plan.ramp.decreased:
        unsaid += (
            "Megatron core after 0.17 has no --rampup-batch-size;"
            f" use --step-batch-size-schedule {thresholds!r}",
        )
    if threshold_unit(source.step_batch_size_schedule or "") == STEPS:
        unsaid += ("Megatron-LM has no thresholds in steps; here they are the same in tokens",)
    words = to_flags({argument: values.get(key) for argument, key in ARGUMENTS.items()})
    return Translation(words=words, unsaid=unsaid)
