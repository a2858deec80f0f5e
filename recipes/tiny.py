"""Models small enough to train on a laptop."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config


def llama3_tiny(num_nodes: int = 2, num_gpus_per_node: int = 1) -> Config:
    """Pretrains a Llama of 0.74 million parameters on Python's own source, in about a minute.

    The ramp has four stages. Small batches come first: in the first thousand samples, more steps
    teach more than larger batches. Two nodes of one process each give the ramp room to grow. The
    tokens are bytes. On a text of your own, `data=indexed` or `data=text`, the vocabulary is that
    of its tokenizer.

    Source: rampcli
    """
    return compose(
        "name=llama3_tiny",
        "model=llama3_tiny",
        "data=stdlib",
        "hardware=any",
        "batch=llama3_tiny",
        "optim=llama3_tiny",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def shakespeare_char(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Pretrains a Llama of 0.76 million parameters on the characters of a text, `data.path=FILE`.

    The first nine tenths of the text are for training, the last tenth is for validation. The number
    of tokens, the sequence length and nearly the number of parameters are those of nanoGPT's
    setting for the CPU; the model has six narrow layers. Queries and keys are normalised, which
    allows a high learning rate with Muon. The batch doubles after a third of the run, soon after
    the learning rate begins to fall. This reaches the loss of small batches in 1333 steps.

    Source: nanoGPT, its setting for the CPU in README.md
    """
    return compose(
        "name=shakespeare_char",
        "model=shakespeare_char",
        "data=text",
        "data.tokenizer=chars",
        "data.split=[90,10,0]",
        "hardware=any",
        # As many tokens as in nanoGPT's 2000 steps of 12 x 64, in 1333 steps.
        "data.sequence_length=64",
        # Up to 24 samples of a rank are one micro batch: two halves take a tenth more time.
        "data.micro_batch_size=24",
        "rampup.micro_batch=largest",
        "model.global_batch_size=24",
        "model.rampup_batch_size=[12,12,7_992]",
        "rampup.at_boundary=continue",
        "trainer.max_samples=24_000",
        "trainer.val_samples=null",
        "trainer.max_val_samples=1_742",  # the whole last tenth of Tiny Shakespeare
        "schedule.decay_style=wsd",
        "schedule.wsd_decay_samples=16_800",
        # Muon for the matrices of the layers. The rate is high because a batch holds 768 tokens.
        "optim.optimizer=muon",
        "optim.lr=3.5e-3",
        "optim.min_lr=3.5e-5",
        "optim.warmup_samples=1_200",
        # The time that these two save pays for most of the fifth and the sixth layer.
        "optim.muon_iterations=3",
        "trainer.matmul_precision=medium",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def sort_digits(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Pretrains a Llama of 0.8 million parameters to sort eight digits, in ten seconds on a CPU.

    The pairs are those of the task `data.task=sort`, such as `31415926=` and `11234569`. The run is
    short on purpose: it ends when the model knows the form of an answer and is often wrong. On
    prompts that it has not seen, a third of the answers that are sampled at temperature 1 are
    right, and two thirds of the likeliest ones. So it is a start for reinforcement learning.

    Source: rampcli
    """
    return compose(
        "name=sort_digits",
        "model=sort_digits",
        "data=pairs",
        "data.task=sort",
        "data.split=[90,10,0]",
        "hardware=any",
        "data.sequence_length=18",  # nine bytes of a prompt, eight digits, and a new line
        "data.micro_batch_size=64",
        "model.global_batch_size=64",
        "model.rampup_batch_size=null",
        "trainer.max_samples=2_560",
        "trainer.val_samples=null",
        "trainer.max_val_samples=256",
        # Muon for the matrices of the layers. After 60 steps of AdamW at 3e-3, only an eighth of
        # the sampled answers are right.
        "optim.optimizer=muon",
        "optim.lr=5.0e-3",
        "optim.min_lr=5.0e-5",
        "optim.warmup_samples=320",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
