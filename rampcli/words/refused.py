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
    "num_generation": "rl.generations_per_prompt",
}
"""Our keys for other systems' keys that are not accepted, by their last part."""
