"""Qwen3 in six sizes, after NeMo's recipes."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config

NEMO = (
    "data=mock",
    "hardware=h100_bf16",
    "batch=nemo_qwen3",
    "optim=nemo_adam",
    "optim.warmup_steps=500",  # NeMo's Llama recipes have 2000
)
"""What all of NeMo's Qwen3 recipes share."""


def qwen3_0p6b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 0.6B on random tokens, 32 sequences of 4096 tokens per step.

    Data parallelism alone: all 8 GPUs of a node are data-parallel ranks.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_600m.py
    """
    return compose(
        "name=qwen3_0p6b",
        "model=qwen3_0p6b",
        *NEMO,
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def qwen3_1p7b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 1.7B on random tokens, 32 sequences of 4096 tokens per step.

    Data parallelism alone: all 8 GPUs of a node are data-parallel ranks.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_1p7b.py
    """
    return compose(
        "name=qwen3_1p7b",
        "model=qwen3_1p7b",
        *NEMO,
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def qwen3_4b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 4B on random tokens, 32 sequences of 4096 tokens per step.

    Tensor parallel 2 leaves 4 data-parallel ranks on one node of 8.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_4b.py
    """
    return compose(
        "name=qwen3_4b",
        "model=qwen3_4b",
        *NEMO,
        "parallel.tensor_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def qwen3_8b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 8B on random tokens, 32 sequences of 4096 tokens per step.

    Tensor parallel 4 leaves 2 data-parallel ranks on one node of 8.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_8b.py
    """
    return compose(
        "name=qwen3_8b",
        "model=qwen3_8b",
        *NEMO,
        "parallel.tensor_parallel_size=4",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def qwen3_14b(num_nodes: int = 1, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 14B on random tokens, 32 sequences of 4096 tokens per step.

    Tensor parallel 8 places one copy of the model on one node of 8. Each GPU holds 5 of the 40
    heads and one of the 8 groups of keys and values.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_14b.py
    """
    return compose(
        "name=qwen3_14b",
        "model=qwen3_14b",
        *NEMO,
        "parallel.tensor_parallel_size=8",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def qwen3_32b(num_nodes: int = 2, num_gpus_per_node: int = 8) -> Config:
    """Pretrains Qwen3 32B on random tokens, 32 sequences of 4096 tokens per step.

    Tensor parallel 8 x pipeline 2 places one copy of the model on 2 nodes of 8, so nodes come in
    pairs.

    Source: NeMo, nemo/collections/llm/recipes/qwen3_32b.py
    """
    return compose(
        "name=qwen3_32b",
        "model=qwen3_32b",
        *NEMO,
        "parallel.tensor_parallel_size=8",
        "parallel.pipeline_parallel_size=2",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
