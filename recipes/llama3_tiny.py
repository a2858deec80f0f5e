"""A Llama of 1.0 million parameters that learns Python's own source on a laptop, in about two minutes."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 2, num_gpus_per_node: int = 1) -> Config:
    """Pretrain on the standard library's bytes, through a ramp of four stages.

    Small batches come first: in the first thousand samples, more steps teach more than larger ones.
    `vocab_size` and `data=stdlib` are coupled: the tokens are bytes. Two nodes of one process, so that the ramp has somewhere to grow.
    """
    return compose(
        "model=llama3_tiny",
        "data=stdlib",
        "batch=llama3_tiny",
        "optim=llama3_tiny",
        "name=llama3_tiny",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
