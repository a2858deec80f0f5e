"""Megatron Bridge, NeMo's successor: its spellings of our keys, and a plan in its words.

The names are those of its `ConfigContainer` up to version 0.6. `model.tensor_model_parallel_size`
and the other axes are words of NeMo 1 too.
"""

from rampcli.words.translation import (
    Source,
    Translation,
    micro_batch_differences,
    node_differences,
    semantics_differences,
    step_schedule_differences,
    to_assignments,
)

SPELLINGS: dict[str, str] = {
    "train.micro_batch_size": "data.micro_batch_size",
    "train.global_batch_size": "model.global_batch_size",
    "train.rampup_batch_size": "model.rampup_batch_size",
    "train.step_batch_size_schedule": "model.step_batch_size_schedule",
    "train.decrease_batch_size_if_needed": "rampup.decrease_batch_size_if_needed",
    "train.train_iters": "trainer.max_steps",
    "train.train_samples": "trainer.max_samples",
    "model.seq_length": "data.sequence_length",
    "dataset.seq_length": "data.sequence_length",
    # Up to version 0.5, the field had Megatron core's name.
    "dataset.sequence_length": "data.sequence_length",
    "scheduler.lr_warmup_iters": "optim.warmup_steps",
    "scheduler.lr_warmup_samples": "optim.warmup_samples",
    "optimizer.lr": "optim.lr",
    "optimizer.min_lr": "optim.min_lr",
}


def write(source: Source) -> Translation:
    """Returns a batch in Megatron Bridge's words."""
    plan, parallel = source.plan, source.plan.fleet.parallel
    ramp = None if source.ramp is None else f"[{','.join(map(str, source.ramp))}]"
    words = {
        "train.micro_batch_size": source.micro_batch_size,
        "train.global_batch_size": plan.global_batch_size,
        "train.rampup_batch_size": ramp,
        "train.decrease_batch_size_if_needed": "true" if plan.ramp.decreased else None,
        # Megatron Bridge refuses a ramp together with train.train_samples.
        "train.train_iters": plan.end_step,
        "model.seq_length": plan.sequence_length,
        "dataset.seq_length": plan.sequence_length,
        "model.tensor_model_parallel_size": parallel.tensor,
        "model.pipeline_model_parallel_size": parallel.pipeline,
        "model.context_parallel_size": parallel.context,
    }
    differences = [
        *step_schedule_differences(source, "Megatron Bridge"),
        *semantics_differences(source, "Megatron Bridge", "megatron"),
        *micro_batch_differences(source, "Megatron Bridge"),
        *node_differences(source, "Megatron Bridge"),
    ]
    if source.ramp is not None:
        differences.append(
            "Megatron Bridge after 0.4 ignores train.rampup_batch_size:"
            f" every step has {plan.global_batch_size} samples"
        )
    return Translation(words=to_assignments(words), unsaid=tuple(differences))
