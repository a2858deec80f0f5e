"""GPT-3 126M, as NeMo-Framework-Launcher trains it (launcher_scripts/conf/training/gpt3/126m.yaml)."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 8, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data: 256 sequences of 2048 tokens a step.

    Data parallelism alone: micro batches of 4 on 64 GPUs are one batch, so a step accumulates nothing.
    """
    return compose(
        "model=gpt3_126m",
        "data=mock",
        "batch=gpt3_126m",
        "optim=gpt3_126m",
        "name=gpt3_126m",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
