"""Qwen3 14B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_14b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Tensor parallel 8 is one copy of the model on one node of 8: each GPU has 5 of the 40 heads and one of the 8 groups.
    """
    return compose(
        "model=qwen3_14b",
        "data=mock",
        "batch=qwen3_14b",
        "optim=qwen3_14b",
        "name=qwen3_14b",
        "parallel.tensor_parallel_size=8",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
