"""Mistral, after NeMo's recipe."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config


def mistral_7b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Mistral 7B on random tokens, 512 sequences of 4096 tokens per step.

    Context parallel 2 leaves 4 data-parallel ranks on one node of 8. The sliding window is as long
    as these sequences, so it hides nothing unless `data.sequence_length` is larger. NeMo's recipe
    stops after 100 steps, within its warm-up. This one ends where NeMo's Llama recipes do.

    Source: NeMo, nemo/collections/llm/recipes/mistral_7b.py
    """
    return compose(
        "name=mistral_7b",
        "model=mistral_7b",
        "data=mock",
        "hardware=h100_bf16",
        "batch=nemo_llama",
        "optim=nemo_adam",
        "data.sequence_length=4096",
        "parallel.context_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
