"""Qwen3 4B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_4b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Tensor parallel 2 leaves 4 data-parallel ranks on one node of 8. `head_size` is given, because 32 heads of 128 are wider than the
    model's 2560.
    """
    return compose(
        "model=qwen3_4b",
        "data=mock",
        "batch=qwen3_4b",
        "optim=qwen3_4b",
        "name=qwen3_4b",
        "parallel.tensor_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
