"""Llama 3.1 405B, after NeMo's recipe (nemo/collections/llm/recipes/llama31_405b.py)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 72, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 512 sequences of 8192 tokens a step.

    Tensor parallel 8 x pipeline 9 x context 4 is one copy of the model on 36 nodes of 8; on 72 there are 2 data-parallel ranks.
    NeMo has pipeline 8 in 2 parts, where the embedding and the loss count as two layers besides the 126. Here the layers alone are
    divided: by 9, as in that recipe's first version, and not by 8. Its 2 parts are left out, because their schedule takes micro batches
    9 at a time, and the 256 of a rank are no multiple of 9; among so many, 8 passes of waiting are 3%.
    """
    return compose(
        "model=llama31_405b",
        "data=mock",
        "batch=llama31_405b",
        "optim=llama31_405b",
        "name=llama31_405b",
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=9",
        "parallel.context_parallel_size=4",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
