"""Llama 2, 3, 3.1 and 3.2, after NeMo's recipes."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config

NEMO = ("data=mock", "hardware=h100_bf16", "batch=nemo_llama", "optim=nemo_adam")
"""What all of NeMo's Llama recipes share."""


def llama2_7b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 2 7B on random tokens, 512 sequences of 4096 tokens per step.

    Tensor parallel 2 halves the weights that each GPU holds and leaves 4 data-parallel ranks on one
    node of 8. It divides the 32 heads, each of which has its own keys and values. The learning rate
    is also the paper's (arXiv 2307.09288, section 2.2), but the paper's batch holds twice as many
    tokens, 4M (table 1).

    Source: NeMo, nemo/collections/llm/recipes/llama2_7b.py
    """
    return compose(
        "name=llama2_7b",
        "model=llama2_7b",
        *NEMO,
        "data.sequence_length=4096",
        "parallel.tensor_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def llama3_8b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 3 8B on random tokens, 512 sequences of 8192 tokens per step.

    Context parallel 2 leaves 4 data-parallel ranks on a node of 8. With selective recomputation,
    8192 tokens fit into 80 GB beside the gradients of the whole model.

    Source: NeMo, nemo/collections/llm/recipes/llama3_8b.py
    """
    return compose(
        "name=llama3_8b",
        "model=llama3_8b",
        *NEMO,
        "parallel.context_parallel_size=2",
        "trainer.activation_checkpointing=selective",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def llama3_70b(num_nodes: int = 4, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 3 70B on random tokens, 512 sequences of 8192 tokens per step.

    Tensor parallel 4 x pipeline 4 x context 2 places one copy of the model on 4 nodes of 8, so
    nodes come in fours. Each pipeline rank holds its 20 layers in 5 parts. This interleaved
    schedule takes micro batches 4 at a time, so 4 has to divide those of a step. It fits into 80 GB
    if all activations are recomputed. Meta trained this size with a learning rate of 1.5e-4 (arXiv
    2407.21783, table 3).

    Source: NeMo, nemo/collections/llm/recipes/llama3_70b.py
    """
    return compose(
        "name=llama3_70b",
        "model=llama3_70b",
        *NEMO,
        "parallel.tensor_parallel_size=4",
        "parallel.pipeline_parallel_size=4",
        "parallel.virtual_pipeline_parallel_size=5",
        "parallel.context_parallel_size=2",
        "trainer.activation_checkpointing=full",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def llama31_405b(num_nodes: int = 72, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 3.1 405B on random tokens, 512 sequences of 8192 tokens per step.

    Tensor parallel 8 x pipeline 9 x context 4 places one copy of the model on 36 nodes of 8, so 72
    nodes are 2 data-parallel ranks. NeMo has 8 pipeline ranks with 2 parts each, because it counts
    the embedding and the loss as two layers besides the 126. Here only the layers are divided: by
    9, as in the first version of NeMo's recipe, because 8 does not divide 126. The 2 parts are left
    out. Their schedule would take micro batches 9 at a time, and the 256 of a rank are not a
    multiple of 9. Without them, a rank waits for 8 of 256 passes, which is 3%. Selective
    recomputation fits the activations into 80 GB.

    Meta's own batch grew from 4M to 8M and 16M tokens (arXiv 2407.21783, section 3.4.1), with a
    learning rate of 8e-5 (table 3).

    Source: NeMo, nemo/collections/llm/recipes/llama31_405b.py
    """
    return compose(
        "name=llama31_405b",
        "model=llama31_405b",
        *NEMO,
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=9",
        "parallel.context_parallel_size=4",
        "trainer.activation_checkpointing=selective",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def llama32_1b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 3.2 1B on random tokens, 512 sequences of 8192 tokens per step.

    The model is small enough for data parallelism alone: all 8 GPUs of a node are data-parallel
    ranks. Meta did not pretrain it, but pruned Llama 3.1 8B and distilled larger models into it.
    The RoPE scaling is the one of the published weights.

    Source: NeMo, nemo/collections/llm/recipes/llama32_1b.py
    """
    return compose(
        "name=llama32_1b",
        "model=llama32_1b",
        *NEMO,
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def llama32_3b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Llama 3.2 3B on random tokens, 512 sequences of 8192 tokens per step.

    Data parallelism alone, as `llama32_1b`, and likewise pruned and distilled by Meta.

    Source: NeMo, nemo/collections/llm/recipes/llama32_3b.py
    """
    return compose(
        "name=llama32_3b",
        "model=llama32_3b",
        *NEMO,
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
