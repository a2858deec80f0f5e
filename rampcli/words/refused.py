"""Words that several systems have and that are not accepted, and the keys to set instead."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_LENGTHS = "trainer.max_samples, trainer.max_steps or trainer.max_tokens"
EPOCHS = (
    *("epoch", "epochs", "num_epoch", "num_epochs", "max_epoch", "max_epochs", "n_epochs"),
    *("total_epochs", "train_epochs", "num_train_epochs"),
)
"""Words for passes over the data."""
_BATCHES = "trainer.max_val_samples=N, with N = the batches x their size"
_WARM_UP = "optim.warmup_steps=N, with N = the fraction x the steps that `rampcli plan` shows"
MEANT: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        EPOCHS,
        (
            f"is not a setting: a run ends after {_LENGTHS}",
            (
                "trainer.max_samples=N, with N = epochs x the samples of the corpus, which"
                " `rampcli plan` shows (see How long to train, docs/explanation/how-long.md)",
            ),
        ),
    ),
    **dict.fromkeys(
        ("log_every_n_steps", "logging_steps", "log_interval", "log_period", "log_freq"),
        (
            "is not a setting: every step is in metrics.jsonl",
            ("leave it out; `rampcli report RUN` and `rampcli serve` show the steps",),
        ),
    ),
    **dict.fromkeys(
        ("limit_val_batches", "eval_iters", "eval.max_iters"),
        ("is not a setting: a validation is counted in samples", (_BATCHES,)),
    ),
    **dict.fromkeys(
        ("warmup_ratio", "lr_warmup_fraction", "warmup_steps_fraction"),
        ("is not a setting: a warm-up is counted in steps or samples", (_WARM_UP,)),
    ),
    **dict.fromkeys(
        ("lr_decay_iters", "lr_decay_steps"),
        ("is not a setting: the learning rate decays until the run ends", ("leave it out",)),
    ),
    **dict.fromkeys(
        ("dropout", "attention_dropout", "hidden_dropout", "ffn_dropout"),
        ("is not a setting: no model here has dropout", ("leave it out",)),
    ),
    **dict.fromkeys(
        ("num_workers", "dataloader_num_workers"),
        ("is not a setting: each rank reads its samples ahead", ("leave it out",)),
    ),
    **dict.fromkeys(
        ("use_wandb", "wandb_log", "create_wandb_logger", "enable_wandb"),
        ("is not a setting", ("'logging.trackers=[wandb]'",)),
    ),
    **dict.fromkeys(
        ("wandb_project", "wandb.project", "wandb.name", "wandb_run_name", "wandb.entity"),
        (
            "is not a setting: Weights & Biases reads it from the environment",
            ("'logging.trackers=[wandb]', with WANDB_PROJECT and WANDB_NAME in the environment",),
        ),
    ),
    "ppo_mini_batch_size": (
        "is not a setting: a rollout is split into updates",
        ("rl.updates_per_rollout=N, with N = the batch / the mini batch",),
    ),
    "betas": ("is two settings", ("optim.beta1=0.9 optim.beta2=0.95",)),
}
"""What is wrong with other systems' keys that have no single one of ours, and what to do instead,
by their last part, their last two parts or the whole key."""
_OF_OURS = {
    "name": "run_name exp_name exp_manager.name",
    "run_dir": (
        "log_dir explicit_log_dir output_dir save_dir out_dir exp_dir base_output_directory"
        " save load"
    ),
    "resume": "resume_if_exists resume_from_checkpoint",
    "model.num_layers": "n_layers num_hidden_layers base_num_decoder_layers",
    "model.hidden_size": "n_embd d_model dim emb_dim base_emb_dim",
    "model.ffn_hidden_size": "intermediate_size mlp_dim base_mlp_dim",
    "model.num_attention_heads": "n_head n_heads num_heads base_num_query_heads",
    "model.num_query_groups": "num_key_value_heads n_kv_heads base_num_kv_heads",
    "model.head_size": "head_dim kv_channels",
    "model.activation": "hidden_act activation_func",
    "model.norm_epsilon": "rms_norm_eps layernorm_epsilon",
    "model.rotary_base": "rope_theta",
    "model.tie_embeddings": "tie_word_embeddings",
    "model.global_batch_size": "batchsize train.batch_size",
    "model.rampup_batch_size": (
        "start_batch_size batch_size_increment rampup_samples ramp_up_samples rampup_batch_size"
    ),
    "data.micro_batch_size": "per_device_train_batch_size local_batch_size",
    "data.sequence_length": (
        "max_target_length seq_length encoder_seq_length max_seq_length seq_len max_seq_len"
        " block_size max_position_embeddings"
    ),
    "data.path": "data_path dataset_path",
    "data.blend": "data_prefix paths",
    "data.split": "splits_string",
    "data.document_mask": "reset_attention_mask",
    "trainer.max_steps": "steps train_iters max_iters limit_train_batches",
    "trainer.max_samples": "train_samples",
    "trainer.val_every_steps": (
        "val_check_interval eval_interval eval_steps eval.interval eval_strategy"
        " evaluation_strategy"
    ),
    "trainer.gradient_clip_val": (
        "max_grad_norm clip_grad grad_clip max_norm gradient_clipping_threshold"
    ),
    "trainer.num_nodes": "nodes nnodes",
    "trainer.devices": "gpus num_gpus n_gpus gpus_per_node nproc_per_node",
    "trainer.accelerator": "device",
    "trainer.precision": "bf16 fp16 dtype weight_dtype mixed_precision_param params_dtype",
    "trainer.activation_checkpointing": (
        "gradient_checkpointing recompute_granularity recompute_activations remat_policy"
        " activation_checkpoint.mode"
    ),
    "trainer.compile": "torch_compile compile.enable",
    "parallel.tensor_parallel_size": "tp tp_size tensor_model_parallel_size",
    "parallel.pipeline_parallel_size": "pp pp_size pipeline_model_parallel_size",
    "parallel.context_parallel_size": "cp cp_size",
    "parallel.data_parallel_shard_size": "fsdp deepspeed use_distributed_optimizer",
    "optim.optimizer": "optim.name optim.type",
    "optim.lr": "learning_rate",
    "optim.warmup_steps": "warmup_iters lr_warmup_iters lr_warmup_steps",
    "optim.beta1": "adam_beta1 adam_b1",
    "optim.beta2": "adam_beta2 adam_b2",
    "optim.eps": "adam_epsilon adam_eps",
    "schedule.decay_style": (
        "scheduler sched lr_scheduler lr_scheduler_type lr_schedule decay_lr scheduler.name"
        " sched.name"
    ),
    "checkpoint.every_steps": (
        "save_interval save_steps every_n_train_steps checkpoint_period checkpoint.interval"
        " save_strategy"
    ),
    "checkpoint.keep_last": "save_top_k save_total_limit keep_latest_k",
    "launch.slurm.time": "max_time",
    "logging.trackers": "report_to",
    "profile.steps": "enable_profiling",
    "rl.generations_per_prompt": "num_generations num_generation group_size",
    "rl.max_response_tokens": "max_completion_length max_response_length",
    "rl.kl_weight": "beta",
    "rl.clip_high": "epsilon_high",
}
"""Other systems' keys that mean a key of ours, though they are not accepted."""
KNOWN_ELSEWHERE = {theirs: key for key, words in _OF_OURS.items() for theirs in words.split()}
"""Our keys for other systems' keys that are not accepted, by their last part, their last two parts
or the whole key."""

VALUES_ELSEWHERE = {
    **dict.fromkeys(("float32", "32", "32-true"), "fp32"),
    **dict.fromkeys(("cuda", "gpus"), "gpu"),
}
"""Our choices for other systems' values whose letters are not near."""


def known_elsewhere(key: str, table: Mapping[str, T]) -> T | None:
    """Returns what a table has for the longest end of a key, such as `wandb.project`, or None."""
    parts = key.replace("-", "_").split(".")
    ends = (".".join(parts[-length:]) for length in (len(parts), 2, 1))
    return next((table[end] for end in ends if end in table), None)
