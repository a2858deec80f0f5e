"""Qwen3 32B, as NeMo's recipe trains it (nemo/collections/llm/recipes/qwen3_32b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 2, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 32 sequences of 4096 tokens a step.

    Tensor parallel 8 x pipeline 2 is one copy of the model on 2 nodes of 8, so nodes come in pairs. `head_size` is given, because 64
    heads of 128 are wider than the model's 5120.
    """
    return compose(
        "model=qwen3_32b",
        "data=mock",
        "batch=qwen3_32b",
        "optim=qwen3_32b",
        "name=qwen3_32b",
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
