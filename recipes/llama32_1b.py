"""Llama 3.2 1B, as NeMo's recipe trains it (nemo/collections/llm/recipes/llama32_1b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 8192 tokens a step.

    Small enough for data parallelism alone: all 8 GPUs of a node are data-parallel ranks. Meta did not train it like this, but pruned
    Llama 3.1 8B and distilled larger models into it; the scaling of rope is that of the published weights.
    """
    return compose(
        "model=llama32_1b",
        "data=mock",
        "batch=llama32_1b",
        "optim=llama32_1b",
        "name=llama32_1b",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
