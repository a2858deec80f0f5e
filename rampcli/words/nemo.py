"""NeMo 1 and NeMo 2: their spellings of our keys, and a plan in their words."""

from rampcli.words.translation import Source, Translation, differences, to_assignments

NEMO_1: dict[str, str] = {
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
}
"""The model holds everything."""
NEMO_2: dict[str, str] = {
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
}
"""The data module holds the batch sizes, and MegatronStrategy the axes."""


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
    keys = {
        f"{data}.micro_batch_size": "data.micro_batch_size",
        f"{data}.global_batch_size": "model.global_batch_size",
        f"{data}.rampup_batch_size": "model.rampup_batch_size",
        sequence_length: "data.sequence_length",
        f"{strategy}.tensor_model_parallel_size": "parallel.tensor_parallel_size",
        f"{strategy}.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
        f"{strategy}.context_parallel_size": "parallel.context_parallel_size",
        "trainer.num_nodes": "trainer.num_nodes",
        "trainer.devices": "trainer.devices",
        "trainer.max_steps": "trainer.max_steps",
    }
    values = source.values()
    return Translation(
        words=to_assignments({word: values[key] for word, key in keys.items()}),
        unsaid=differences(source, "NeMo"),
    )
