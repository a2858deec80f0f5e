"""Mistral 7B, as NeMo's recipe trains it (nemo/collections/llm/recipes/mistral_7b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 4096 tokens a step.

    Context parallel 2 is the recipe's; it leaves 4 data-parallel ranks on one node of 8. The window is as long as these sequences, so
    it hides nothing until `data.sequence_length` is larger.
    """
    return compose(
        "model=mistral_7b",
        "data=mock",
        "batch=mistral_7b",
        "optim=mistral_7b",
        "name=mistral_7b",
        "parallel.context_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
