"""GPT-3 20B, as NeMo-Framework-Launcher trains it (launcher_scripts/conf/training/gpt3/20b.yaml)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 64, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 2048 sequences of 2048 tokens a step.

    Tensor parallel 2 leaves 256 data-parallel ranks on 64 nodes of 8; with micro batches of 2, a step accumulates 4.
    """
    return compose(
        "model=gpt3_20b",
        "data=mock",
        "batch=gpt3_20b",
        "optim=gpt3_20b",
        "name=gpt3_20b",
        "parallel.tensor_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
