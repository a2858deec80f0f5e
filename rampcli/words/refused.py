"""Words of other systems that are not accepted, and the keys to set instead."""

from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.plan import GLOBAL_KEY, MICRO_KEY
from rampcli.words.rl import RL_COMMAND

DERIVED: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("global_batch_to_load", "global_batch_size_to_load"),
        (
            "MaxText: samples that are loaded for an optimiser step: at least one per device and"
            " pass, times `data.expansion_factor_real_data`.",
            ("model.global_batch_size", "data.expansion_factor_real_data"),
        ),
    ),
    **dict.fromkeys(
        ("global_batch_to_train", "global_batch_size_to_train_on"),
        (
            "MaxText: samples that an optimiser step trains on. Here: `model.global_batch_size`.",
            ("model.global_batch_size", "per_device_batch_size"),
        ),
    ),
    "micro_batch_size_to_train_on": (
        "MaxText: samples that all devices train on in one forward and backward pass. In MaxText's"
        " ramp, a step is one pass.",
        ("data.micro_batch_size", "per_device_batch_size"),
    ),
}
"""Meaning of each number that MaxText derives, and the keys to set instead."""
REFUSED: dict[str, tuple[str, str]] = {
    **{
        name: ("is derived and cannot be set", " or ".join(keys))
        for name, (_, keys) in DERIVED.items()
    },
    "batch_size": (
        f"is a word of `{RL_COMMAND}`",
        f"{GLOBAL_KEY}, or {PROMPTS_KEY} under {RL_COMMAND}",
    ),
    "num_generations": (f"is a word of `{RL_COMMAND}`", f"{GENERATIONS_KEY} under {RL_COMMAND}"),
    "micro_batch_size": (
        f"is a word of `{RL_COMMAND}`",
        f"{MICRO_KEY}, or {PAIRS_KEY} under {RL_COMMAND}",
    ),
    "train_micro_batch_size": (
        f"counts prompts of all devices, and {PAIRS_KEY} counts pairs per rank",
        PAIRS_KEY,
    ),
    "ppo_micro_batch_size": (
        f"counts responses of all devices, and {PAIRS_KEY} counts pairs per rank",
        PAIRS_KEY,
    ),
}
"""Why each word is refused, and what to set instead."""
_LENGTHS = "trainer.max_samples, trainer.max_steps or trainer.max_tokens"
EPOCHS = (
    *("epoch", "epochs", "num_epoch", "num_epochs", "max_epoch", "max_epochs", "n_epochs"),
    *("total_epochs", "train_epochs", "num_train_epochs"),
)
"""Words for passes over the data."""
MEANT: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        EPOCHS,
        (
            f"is not a setting: a run ends after {_LENGTHS}",
            "trainer.max_samples=N, with N = epochs x the samples of the corpus, which"
            " `rampcli plan` shows (see How long to train, docs/explanation/how-long.md)",
        ),
    ),
    **dict.fromkeys(
        ("log_every_n_steps", "logging_steps", "log_interval"),
        (
            "is not a setting: every step is in metrics.jsonl",
            "leave it out; `rampcli report RUN` and `rampcli serve` show the steps",
        ),
    ),
    "training": (
        "is a group of NeMo's launcher",
        "--factory NAME; `rampcli recipes` lists the names",
    ),
}
"""What is wrong with other systems' keys that have no single one of ours, and what to do instead,
by their last part."""
NEMO_SECTIONS = ("config", "lr_scheduler")
"""Sections of NeMo's `optim`. They are no extensions."""
HYDRA = ("sets Hydra itself, which writes no files here", "run_dir=FOLDER")
KNOWN_ELSEWHERE = {
    "max_target_length": "data.sequence_length",
    "seq_length": "data.sequence_length",
    "encoder_seq_length": "data.sequence_length",
    "data_path": "data.path",
    "data_prefix": "data.blend",
    "paths": "data.blend",
    "splits_string": "data.split",
    "reset_attention_mask": "data.document_mask",
    "steps": "trainer.max_steps",
    "train_iters": "trainer.max_steps",
    "train_samples": "trainer.max_samples",
    "num_generations": "rl.generations_per_prompt",
    "batchsize": "model.global_batch_size",
    "ppo_mini_batch_size": "rl.updates_per_rollout",
    "max_completion_length": "rl.max_response_tokens",
    "max_response_length": "rl.max_response_tokens",
    "learning_rate": "optim.lr",
    "beta": "rl.kl_weight",
    "epsilon_high": "rl.clip_high",
    "group_size": "rl.generations_per_prompt",
    **dict.fromkeys(
        ("val_check_interval", "eval_interval", "eval_steps"), "trainer.val_every_steps"
    ),
    **dict.fromkeys(("limit_val_batches", "eval_iters"), "trainer.max_val_samples"),
    **dict.fromkeys(("log_dir", "explicit_log_dir", "output_dir", "save_dir"), "run_dir"),
    **dict.fromkeys(("resume_if_exists", "resume_from_checkpoint"), "resume"),
    **dict.fromkeys(
        ("save_interval", "save_steps", "every_n_train_steps"), "checkpoint.every_steps"
    ),
    **dict.fromkeys(
        ("start_batch_size", "batch_size_increment", "rampup_samples"), "model.rampup_batch_size"
    ),
    **dict.fromkeys(("max_grad_norm", "clip_grad"), "trainer.gradient_clip_val"),
    "save_top_k": "checkpoint.keep_last",
    "device": "trainer.accelerator",
    "num_generation": "rl.generations_per_prompt",
}
"""Our keys for other systems' keys that are not accepted, by their last part."""
