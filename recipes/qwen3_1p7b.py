"""Qwen3 1.7B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_1p7b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Data parallelism alone: all 8 GPUs of a node are data-parallel ranks.
    """
    return compose(
        "model=qwen3_1p7b",
        "data=mock",
        "batch=qwen3_1p7b",
        "optim=qwen3_1p7b",
        "name=qwen3_1p7b",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
