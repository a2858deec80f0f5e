"""Qwen3 8B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_8b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Tensor parallel 4 leaves 2 data-parallel ranks on one node of 8.
    """
    return compose(
        "model=qwen3_8b",
        "data=mock",
        "batch=qwen3_8b",
        "optim=qwen3_8b",
        "name=qwen3_8b",
        "parallel.tensor_parallel_size=4",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
