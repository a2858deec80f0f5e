"""Llama 3 8B, as NeMo's recipe trains it (nemo/collections/llm/recipes/llama3_8b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 8192 tokens a step.

    Context parallel 2 is the recipe's answer to 8192 tokens on 80 GB; it leaves 4 data-parallel ranks on one node of 8.
    """
    return compose(
        "model=llama3_8b",
        "data=mock",
        "batch=llama3_8b",
        "optim=llama3_8b",
        "name=llama3_8b",
        "parallel.context_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
