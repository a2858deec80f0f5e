"""NeMo 1 and NeMo 2: their spellings of our keys, and a plan in their words."""

from collections.abc import Mapping

from rampcli.batch.run_settings import DECREASE_KEY
from rampcli.words.translation import Source, Translation, differences, to_assignments

NEMO_1: dict[str, str] = {
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
}
"""The model holds everything. Plans are written in these words too, so a key has one word."""
NEMO_2: dict[str, str] = {
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
}
"""The data module holds the batch sizes, and MegatronStrategy the axes. Plans are written so."""
UNSUPPORTED = (DECREASE_KEY, "trainer.max_samples")
"""Our keys that NeMo has no word for."""


def write_nemo_1(source: Source) -> Translation:
    """Returns a batch in NeMo 1's words."""
    return _write(source, NEMO_1, sequence_length="model.encoder_seq_length")


def write_nemo_2(source: Source) -> Translation:
    """Returns a batch in NeMo 2's words."""
    return _write(source, NEMO_2, sequence_length="data.seq_length")


def _write(source: Source, spellings: Mapping[str, str], *, sequence_length: str) -> Translation:
    """Returns a batch in a version's spellings. NeMo shares our other keys."""
    words = {key: word for word, key in spellings.items()}
    words["data.sequence_length"] = sequence_length
    values = {
        words.get(key, key): value
        for key, value in source.values().items()
        if key not in UNSUPPORTED
    }
    return Translation(words=to_assignments(values), unsaid=differences(source, "NeMo"))
