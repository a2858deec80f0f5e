"""Fine-tunes any model that is in a Hugging Face folder."""

from rampcli.config.compose import compose
from rampcli.settings.config import Config


def fine_tune(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Fine-tunes the model in `model.init_from=FOLDER` on the pairs in `data.path=FILE`.

    The folder gives the model's settings, its tokenizer and its chat template. The learning rate is
    low and warms up, so that the first steps do not undo what the model has learnt. It decays to
    zero, without weight decay. These are Alpaca's settings. Alpaca's batch is 128 pairs. Here it is
    32 samples, into each of which several pairs are packed. A tenth of the prompts is held out for
    validation.

    Source: Stanford Alpaca, its hyperparameters in README.md
    """
    return compose(
        "name=fine_tune",
        "model=from_folder",
        "data=pairs",
        "data.split=[90,10,0]",
        "hardware=any",
        "data.sequence_length=512",
        "data.micro_batch_size=4",
        "model.global_batch_size=32",
        "model.rampup_batch_size=null",
        "trainer.max_samples=3_200",
        "trainer.val_every_steps=20",
        "trainer.val_samples=null",
        "trainer.max_val_samples=8",
        "optim.optimizer=adamw",
        "optim.lr=2.0e-5",
        "optim.min_lr=2.0e-7",
        "optim.warmup_samples=96",  # 3% of the run
        "optim.weight_decay=0.0",
        "optim.beta2=0.999",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )
