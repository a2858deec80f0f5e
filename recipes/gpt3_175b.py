"""GPT-3 175B, as NeMo-Framework-Launcher trains it (launcher_scripts/conf/training/gpt3/175b.yaml)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 128, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 2048 sequences of 2048 tokens a step.

    Tensor parallel 4 x pipeline 8 is one copy of the model on 4 nodes of 8, and 128 nodes are 32 data-parallel ranks. Each pipeline
    rank has its 12 layers in 6 parts, and that schedule takes micro batches 8 at a time: 8 divides the 64 of a step.
    """
    return compose(
        "model=gpt3_175b",
        "data=mock",
        "batch=gpt3_175b",
        "optim=gpt3_175b",
        "name=gpt3_175b",
        "parallel.tensor_parallel_size=4",
        "parallel.pipeline_parallel_size=8",
        "parallel.virtual_pipeline_parallel_size=6",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
