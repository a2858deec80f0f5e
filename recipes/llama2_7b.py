"""Llama 2 7B, as NeMo's recipe trains it (nemo/collections/llm/recipes/llama2_7b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 4096 tokens a step.

    Tensor parallel 2 halves the weights that a GPU holds; it leaves 4 data-parallel ranks on one node of 8. It divides the 32 heads,
    which all have their own keys and values.
    """
    return compose(
        "model=llama2_7b",
        "data=mock",
        "batch=llama2_7b",
        "optim=llama2_7b",
        "name=llama2_7b",
        "parallel.tensor_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
