"""GPT-3 5B with the batch-size ramp-up of NeMo's documentation."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 16, num_gpus_per_node: int = 8) -> Config:
    """Pretrain on mock data, from 256 to 2048 samples a step, on 8 to 16 nodes.

    Micro batches of 4 on nodes of 8 GPUs make every batch of the ramp a multiple of 32 x nodes for some number of nodes.
    """
    return compose(
        "model=gpt3_5b",
        "data=mock",
        "batch=gpt3_5b",
        "optim=gpt3_5b",
        "name=gpt3_5b",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
