"""GPT-3 in four sizes, after NeMo-Framework-Launcher.

The launcher holds the learning rate constant at the end of a run: for 100,000 steps with 126M, for
12,500 with the others. These recipes leave that tail out, so their learning rate falls until the
end.
"""

from rampcli.config.compose import compose
from rampcli.settings.config import Config

NEMO = ("data=mock", "hardware=h100_bf16", "batch=nemo_gpt3", "optim=nemo_gpt3")
"""What all sizes share."""


def gpt3_126m(num_nodes: int = 8, num_gpus_per_node: int = 8) -> Config:
    """Pretrains GPT-3 126M on random tokens, 256 sequences of 2048 tokens per step.

    Data parallelism alone: micro batches of 4 on 64 GPUs make up the whole batch, so nothing is
    accumulated.

    Source: NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/126m.yaml
    """
    return compose(
        "name=gpt3_126m",
        "model=gpt3_126m",
        *NEMO,
        "model.global_batch_size=256",
        "trainer.max_steps=600_000",
        "optim.lr=6.0e-4",
        "optim.min_lr=6.0e-5",
        "optim.warmup_steps=636",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def gpt3_5b(num_nodes: int = 16, num_gpus_per_node: int = 8) -> Config:
    """Pretrains GPT-3 5B on random tokens, with a ramp from 256 to 2048 samples on 8 to 16 nodes.

    The ramp is the example of NeMo's documentation. Micro batches of 4 on nodes of 8 GPUs make each
    of its batch sizes a multiple of 32 x nodes for some number of nodes.

    Source: NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/5b.yaml
    """
    return compose(
        "name=gpt3_5b",
        "model=gpt3_5b",
        *NEMO,
        "model.rampup_batch_size=[256,256,10_000_000]",
        "optim.lr=1.6e-4",
        "optim.min_lr=1.6e-5",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def gpt3_20b(num_nodes: int = 64, num_gpus_per_node: int = 8) -> Config:
    """Pretrains GPT-3 20B on random tokens, 2048 sequences of 2048 tokens per step.

    Tensor parallel 2 leaves 256 data-parallel ranks on 64 nodes of 8. With micro batches of 2, each
    rank accumulates 4 per step.

    Source: NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/20b.yaml
    """
    return compose(
        "name=gpt3_20b",
        "model=gpt3_20b",
        *NEMO,
        "data.micro_batch_size=2",
        "parallel.tensor_parallel_size=2",
        "optim.lr=1.4e-4",
        "optim.min_lr=1.4e-5",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def gpt3_175b(num_nodes: int = 128, num_gpus_per_node: int = 8) -> Config:
    """Pretrains GPT-3 175B on random tokens, 2048 sequences of 2048 tokens per step.

    Tensor parallel 4 x pipeline 8 places one copy of the model on 4 nodes of 8, so 128 nodes are 32
    data-parallel ranks. Each pipeline rank holds its 12 layers in 6 parts. This interleaved
    schedule takes micro batches 8 at a time, and 8 divides the 64 of a step.

    Source: NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/175b.yaml
    """
    return compose(
        "name=gpt3_175b",
        "model=gpt3_175b",
        *NEMO,
        "data.micro_batch_size=1",
        "parallel.tensor_parallel_size=4",
        "parallel.pipeline_parallel_size=8",
        "parallel.virtual_pipeline_parallel_size=6",
        "optim.lr=0.9e-4",
        "optim.min_lr=0.9e-5",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
