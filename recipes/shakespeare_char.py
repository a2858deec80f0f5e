"""A Llama of 0.51 million parameters that learns the characters of Shakespeare."""

from rampcli.config.compose import compose
from rampcli.config.schema import Config


def pretrain_recipe(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Pretrain on the characters of a text, `data.path=FILE`: the first nine tenths of it; the last tenth validates.

    The tokens and the context are those of nanoGPT's setting for the CPU; the size is two thirds of its, for a step costs as much then.
    Queries and keys are normalised, which lets Muon's rate be high, and the batch doubles after a third, where the rate begins to fall: the
    loss of small batches in 1333 steps.
    """
    return compose(
        "model=shakespeare_char",
        "data=text",
        "data.tokenizer=chars",
        "batch=shakespeare_char",
        "optim=shakespeare_char",
        "name=shakespeare_char",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
