"""Megatron Bridge, NeMo's successor: its spellings of our keys, and a plan in its words.

The names are those of its `ConfigContainer` up to version 0.6.
"""

from rampcli.words.translation import Source, Translation, differences, to_assignments

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
    "dataset.sequence_length": "data.sequence_length",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
    "scheduler.lr_warmup_iters": "optim.warmup_steps",
    "scheduler.lr_warmup_samples": "optim.warmup_samples",
    "optimizer.lr": "optim.lr",
    "optimizer.min_lr": "optim.min_lr",
}
UNWRITTEN = ("train.train_samples", "dataset.sequence_length")
"""The first is refused together with a ramp, the second is the name in versions up to 0.5."""


def write(source: Source) -> Translation:
    """Returns a batch in Megatron Bridge's words."""
    values = source.values()
    unsaid = differences(source, "Megatron Bridge", decreases=True)
    if source.ramp is not None:
        unsaid += (
            "Megatron Bridge after 0.4 ignores train.rampup_batch_size:"
            f" every step has {source.plan.global_batch_size} samples",
        )
    words = {
        word: values[key]
        for word, key in SPELLINGS.items()
        if key in values and word not in UNWRITTEN
    }
    return Translation(words=to_assignments(words), unsaid=unsaid)
