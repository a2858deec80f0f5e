"""Llama 3 70B, as NeMo's recipe trains it (nemo/collections/llm/recipes/llama3_70b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 4, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 8192 tokens a step.

    Tensor parallel 4 x pipeline 4 x context 2 is one copy of the model on 4 nodes of 8, so nodes come in fours. Each pipeline rank has
    its 20 layers in 5 parts, and that schedule takes micro batches 4 at a time: 4 has to divide those of a step.
    """
    return compose(
        "model=llama3_70b",
        "data=mock",
        "batch=llama3_70b",
        "optim=llama3_70b",
        "name=llama3_70b",
        "parallel.tensor_parallel_size=4",
        "parallel.pipeline_parallel_size=4",
        "parallel.virtual_pipeline_parallel_size=5",
        "parallel.context_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
