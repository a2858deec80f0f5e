"""Qwen3 0.6B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_600m.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Data parallelism alone: all 8 GPUs of a node are data-parallel ranks. `head_size` is given, because 16 heads of 128 are wider than
    the model's 1024.
    """
    return compose(
        "model=qwen3_0p6b",
        "data=mock",
        "batch=qwen3_0p6b",
        "optim=qwen3_0p6b",
        "name=qwen3_0p6b",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
