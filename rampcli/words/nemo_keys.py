"""Tables for NeMo's YAML files: what its keys mean here, its defaults, and what has no equal.

The facts are those of NeMo 2.5, Megatron core 0.12 and NeMo-Framework-Launcher 25.02. A key of
NeMo 2 has the name of NeMo 1 in all tables but the last ones.
"""

from collections.abc import Mapping
from typing import Any

SCHEDULE = "model.optim.sched"
REQUIRED = object()
"""Stands for the default of a key that has none."""
DISTRIBUTED = ("mcore_distributed_optim", "distributed_fused_adam")

SAME: dict[str, tuple[str, Any]] = {
    "seed": ("model.seed", 1234),
    "model.num_layers": ("model.num_layers", REQUIRED),
    "model.hidden_size": ("model.hidden_size", REQUIRED),
    "model.num_attention_heads": ("model.num_attention_heads", REQUIRED),
    "model.head_size": ("model.kv_channels", None),
    "model.num_query_groups": ("model.num_query_groups", None),
    "model.norm_epsilon": ("model.layernorm_epsilon", 1e-5),
    "model.rotary_base": ("model.rotary_base", 10_000),
    "model.bias": ("model.bias", True),
    "model.tie_embeddings": ("model.share_embeddings_and_output_weights", True),
    "model.init_std": ("model.init_method_std", 0.02),
    "model.global_batch_size": ("model.global_batch_size", REQUIRED),
    "model.rampup_batch_size": ("model.rampup_batch_size", None),
    "data.micro_batch_size": ("model.micro_batch_size", REQUIRED),
    "data.eod_mask_loss": ("model.data.eod_mask_loss", False),
    "parallel.tensor_parallel_size": ("model.tensor_model_parallel_size", 1),
    "parallel.pipeline_parallel_size": ("model.pipeline_model_parallel_size", 1),
    "parallel.virtual_pipeline_parallel_size": ("model.virtual_pipeline_model_parallel_size", 1),
    "parallel.context_parallel_size": ("model.context_parallel_size", 1),
    "trainer.num_nodes": ("trainer.num_nodes", 1),
    "optim.lr": ("model.optim.lr", REQUIRED),
    "optim.weight_decay": ("model.optim.weight_decay", REQUIRED),
    "optim.eps": ("model.optim.eps", 1e-8),
}
"""NeMo's key that has the same values as ours, and NeMo's default."""
CHOICES: dict[str, tuple[str, Any, Mapping[str, str], str]] = {
    "model.normalization": (
        "model.normalization",
        "layernorm",
        # layernorm1p keeps its weights minus 1. Only weight decay would notice.
        {"layernorm": "layernorm", "layernorm1p": "layernorm", "rmsnorm": "rmsnorm"},
        "no model here has this normalisation",
    ),
    "model.activation": (
        "model.activation",
        "gelu",
        {"gelu": "gelu", "swiglu": "swiglu", "fast-swiglu": "swiglu"},
        "no model here has this activation function",
    ),
    "model.position_embedding": (
        "model.position_embedding_type",
        "learned_absolute",
        {"learned_absolute": "learned", "rope": "rope"},
        "no model here has this position embedding",
    ),
    "trainer.accelerator": (
        "trainer.accelerator",
        "auto",
        {"gpu": "gpu", "cuda": "gpu", "cpu": "cpu", "auto": "auto"},
        "runs here need GPUs or a CPU",
    ),
    "trainer.precision": (
        "trainer.precision",
        32,
        {"bf16": "bf16", "bf16-mixed": "bf16", "32": "fp32", "32-true": "fp32"},
        "runs here compute in bf16 or fp32",
    ),
    "trainer.activation_checkpointing": (
        "model.activations_checkpoint_granularity",
        None,
        {"none": "none", "selective": "selective", "full": "full"},
        "activations cannot be recomputed like this",
    ),
    "optim.optimizer": (
        "model.optim.name",
        "adam",
        # NeMo's `adam` adds the decay to the gradient.
        dict.fromkeys((*DISTRIBUTED, "fused_adam", "megatron_fused_adam", "adamw"), "adamw"),
        "no optimiser here computes the same",
    ),
    "schedule.decay_style": (
        f"{SCHEDULE}.name",
        None,
        {
            "none": "constant",
            "warmuppolicy": "constant",
            "warmupholdpolicy": "constant",
            "cosineannealing": "cosine",
            "warmupannealing": "linear",
            "polynomialdecayannealing": "linear",
            "inversesquarerootannealing": "inverse_sqrt",
        },
        "no decay here has this shape",
    ),
}
"""For each of our keys: NeMo's key, its default, our values by NeMo's, why others have no equal.

NeMo's values are in lower case here.
"""
TOKENIZERS = {
    **dict.fromkeys(("GPT2BPETokenizer", "megatron-gpt-345m", "gpt2"), 50_257),
    **dict.fromkeys(("meta-llama/Llama-2", "mistralai/Mistral-7B-v0.1"), 32_000),
    **dict.fromkeys(("meta-llama/Meta-Llama-3", "meta-llama/Llama-3"), 128_256),
    "mistralai/Mixtral-8x7B": 32_000,
    "mistralai/Mistral-Nemo": 131_072,
    "tiiuae/falcon-7b": 65_024,
    "bigcode/starcoder2": 49_152,
    "EleutherAI/gpt-neox-20b": 50_277,
}
"""Tokens of well-known tokenizers, by the beginning of their names."""

DEFAULTS: dict[str, Any] = {
    **{word: default for word, default in SAME.values() if default is not REQUIRED},
    **{word: default for word, default, *_ in CHOICES.values()},
    "trainer.devices": "auto",
    "trainer.limit_val_batches": 1.0,
    "trainer.val_check_interval": 1.0,
    "model.bias_activation_fusion": True,
    "model.scale_factor": 8,
    "model.low_freq_factor": 1,
    "model.high_freq_factor": 4,
    "model.old_context_len": 8192,
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "model.make_vocab_size_divisible_by": 128,
    "model.get_attention_mask_from_fusion": True,
    "model.optim.betas": [0.9, 0.999],
    f"{SCHEDULE}.min_lr": 0.0,
    "exp_manager.create_checkpoint_callback": True,
}
"""NeMo 1's defaults for keys that are left out or null. Other keys default to null."""
DEFAULTS_2: dict[str, Any] = DEFAULTS | {
    "model.micro_batch_size": 4,
    "model.global_batch_size": 8,
    "model.data.seq_length": 2048,
    "model.data.splits_string": "900,50,50",
    "model.bias_activation_fusion": False,
    "model.optim.name": DISTRIBUTED[0],
    "model.optim.weight_decay": 0.01,
    "trainer.gradient_clip_val": 1.0,
}
"""The same for NeMo 2."""
_WARMUP = {f"{SCHEDULE}.warmup_steps": 750}
DEFAULTS_OF_SCHEDULERS: dict[str, dict[str, Any]] = {
    "WarmupPolicy": _WARMUP,
    "WarmupHoldPolicy": _WARMUP,
    "WarmupAnnealing": _WARMUP,
    "CosineAnnealing": _WARMUP | {f"{SCHEDULE}.constant_steps": 80_000, f"{SCHEDULE}.min_lr": 6e-5},
}
"""The same for NeMo 2's schedulers."""

_ROWS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("no model here has dropout", (0,), "hidden_dropout attention_dropout ffn_dropout"),
    ("no model here computes in fp8 or fp4", (0,), "fp8 fp8_params fp4"),
    ("no model here has experts", (1,), "num_moe_experts expert_model_parallel_size"),
    (
        "no model here has this part",
        (0,),
        "headscale apply_embedding_scaling multi_latent_attention mtp_num_layers logits_soft_cap"
        " softmax_scale apply_residual_connection_post_layernorm hybrid_override_pattern"
        " mamba_ssm_ngroups mcore_customization_config.final_logit_softcapping",
    ),
    (
        "no model here has layers of this kind",
        ("", "te_gpt", "decoder_block_gpt", "megatron_gpt_full_te_layer_autocast"),
        "name",
    ),
    ("layers here normalise their inputs", ("pre_ln",), "transformer_block_type"),
    ("only multi-head attention is computed here", ("multihead",), "attention_type"),
    ("attention here scales its scores", (1,), "normalize_attention_scores"),
    ("projections into the residual stream begin smaller here", (1,), "use_scaled_init_method"),
    ("positions are not interpolated here", (1,), "seq_len_interpolation_factor"),
    ("RoPE pairs the first half of a head with the second here", (0,), "rotary_interleaved"),
    ("hidden states have the precision of the model here", (0,), "fp32_residual_connection"),
    ("the loss is computed in fp32 here", (0,), "fp16_lm_cross_entropy"),
    ("weights have Megatron core's order here", (0,), "megatron_legacy"),
    ("every run trains here", (0,), "skip_train"),
    ("a schedule does not begin anew here", (0,), "reset_lr"),
    ("optimisers compute in fp32 here", ("fp32", "float32"), "optim.dtype"),
    ("optimisers compute in fp32 here", (0,), "optim.use_precision_aware_optimizer"),
    ("weight decay is not added to the gradient here", (1,), "optim.decoupled_weight_decay"),
    ("all weights have one learning rate here", (1,), "optim.lr_mult"),
    ("all weights have one learning rate here", (), "optim.scale_lr_cond optim.decoupled_lr"),
    ("weight decay applies to matrices and embeddings here", (), "optim.no_weight_decay_cond"),
    ("the learning rate decays until the run ends here", (), "optim.sched.max_steps_for_lr_sched"),
    ("no decay here has a power", (1,), "optim.sched.power"),
    ("no decay here repeats", (0,), "optim.sched.cycle"),
    ("samples are not rearranged here", (0,), "data.add_fim"),
    ("NeMo has model.data.data_impl=mock for random tokens", (0,), "data.mock_dataset"),
    (
        "the last token of a sample counts in the loss here",
        (0,),
        "data.no_seqlen_plus_one_input_tokens",
    ),
)
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    **{f"model.{key}": (values, why) for why, values, keys in _ROWS for key in keys.split()},
    "trainer.accumulate_grad_batches": ((1,), "NeMo requires 1 and derives it from the batch"),
    "trainer.limit_train_batches": ((1,), "an epoch does not end early here"),
    **dict.fromkeys(
        (
            *("restore_from_path", "model.restore_from_path", "model.restore_from_ckpt"),
            *("model.resume_from_checkpoint", "exp_manager.resume_from_checkpoint"),
            "exp_manager.restore_config.path",
        ),
        ((), "NeMo's weights cannot be read here"),
    ),
}
"""For each key, the values that change nothing besides null, and why others have no equal here."""
UNCHANGED = tuple(
    section + name
    for section, names in {
        "": """
            defaults hydra.* run.* name cluster* env_vars.* s3_checkpointing.* exp_manager.* log.*
            resume.* *_partial_ *_call_ *dtype._target_ data.tokenizer.* tokenizer
        """,
        "trainer.": """
            strategy.* logger enable_* use_distributed_sampler max_time max_epochs log_every_n_steps
            limit_test_batches benchmark callbacks num_sanity_val_steps check_val_every_n_epoch
            profiler
        """,
        "model.": """
            max_position_embeddings encoder_seq_length make_vocab_size_divisible_by
            rotary_percentage qkv_bias openai_gelu layernorm_zero_centered_gamma
            do_layer_norm_weight_decay mcore_customization_config.parallel_attention
            mcore_customization_config.new_decoder_architecture
            mcore_customization_config.attn_logit_softcapping
            mcore_customization_config.query_pre_attn_scalar tokenizer.* pre_process post_process
            persist_layer_norm memory_efficient_layer_norm gradient_as_bucket_view mcore_gpt
            megatron_amp_O2 transformer_engine use_transformer_engine_*
            apply_query_key_layer_scaling *fusion* activations_checkpoint_*
            num_micro_batches_with_partial_activation_checkpoints recompute_* fsdp fsdp_*
            sequence_parallel overlap_* batch_p2p_* native_amp_* hysteresis
            grad_allreduce_chunk_size_mb sharp use_sharp precision grad_reduce_in_fp32 autocast_*
            params_dtype* pipeline_dtype* fp8_* fp4_* *_in_bf16 bf16 fp16 first_last_layers_bf16
            reduce_amax tp_only_amax_red tp_comm_* ub_tp_comm_* use_flash_attention
            attention_backend attention_softmax_in_fp32 use_emha sync_batch_comm
            use_cpu_initialization init_model_with_meta_device perform_initialization onnx_safe
            *_log_level nsys_profile.* memory_profile.* gc_interval deterministic_mode
            deteministic_mode nccl_communicator_config_path cpu_offloading*
            defer_embedding_wgrad_compute wgrad_deferral_limit dist_ckpt_* ckpt_* save_ckpt_format
            enable_cuda_graph cuda_graph_* *_megatron_timers megatron_timer_kwargs.*
            use_te_rng_tracker use_tp_pp_dp_mapping drop_layers validation_param_sync_overlap
            reset_lr_steps moe_* expert_tensor_parallel_size account_for_*
            num_layers_in_*_pipeline_stage pipeline_model_parallel_* cp_comm_type
            microbatch_group_size_per_vp_stage deallocate_pipeline_outputs calculate_per_token_loss
            parallel_output scatter_embedding_sequence_parallel ddp ddp.* setup_optimizers
            replace_progress_bar progress_interval use_gloo_process_groups find_unused_parameters
            lazy_init add_bias_linear gated_linear_unit
        """,
        "model.data.": """
            reset_position_ids splits_string skip_warmup num_workers fim.* dataloader_type
            index_mapping_dir exchange_indices_distributed shuffle_documents *_mask_from_fusion
            validation_drop_last pad_* ceil_to_power_2 delay_* mmap_bin_files masked_lm_prob
            short_seq_prob data_cache_generation_only num_* create_attention_mask pin_memory
            legacy_dataset persistent_workers init_* output_log vocab_file merges_file
            object_storage_cache_path data_prefix*
        """,
        "model.optim.": """
            bf16 fp16 *_dtype* bucket_cap_mb overlap_* contiguous_* nccl_ub lock_timeout
            *distributed_optimizer* average_in_collective check_for_nan_in_grad align_*
            ddp_bucket_size *loss_scale* hysteresis min_lr sgd_momentum *offload*
            log_num_zeros_in_grad barrier_with_L1_time
        """,
        "model.optim.sched.": """
            max_steps interval frequency monitor hold_* constant_*
        """,
    }.items()
    for name in names.split()
)
"""Patterns of keys that change nothing, or that rules and other checks have looked at.

Settings of `mcore_customization_config` only reach layers that `model.name` chooses.
"""

PREFIXES_2 = {
    "model.config.": "model.",
    "trainer.strategy.": "model.",
    "trainer.plugins.": "model.",
    "optim.config.": "model.optim.",
    "optim.lr_scheduler.": f"{SCHEDULE}.",
    "optim.": "model.optim.",
    "data.paths": "model.data.data_prefix",
    "data.tokenizer.": "model.tokenizer.",
    "data.": "model.data.",
    "log.ckpt.": "exp_manager.checkpoint_callback_params.",
    "log.": "exp_manager.",
    "resume.": "exp_manager.",
}
"""NeMo 1's beginning of a key for NeMo 2's. The first that fits applies."""
NAMES_2 = {
    "data.micro_batch_size": "model.micro_batch_size",
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    "data.split": "model.data.splits_string",
    "data.seed": "model.seed",
    "data.tokenizer.pretrained_model_name": "model.tokenizer.type",
    "data.tokenizer.model_name": "model.tokenizer.type",
    "data._target_": "model.data.data_impl",
    "model.config.seq_length": "model.encoder_seq_length",
    "model.config.vocab_size": "model.override_vocab_size",
    "model.config.add_bias_linear": "model.bias",
    "model.config.add_qkv_bias": "model.qkv_bias",
    "model.config.rotary_percent": "model.rotary_percentage",
    "model.config.activation_func._target_": "model.activation",
    "model.config.recompute_granularity": "model.activations_checkpoint_granularity",
    "model.config.recompute_method": "model.activations_checkpoint_method",
    "model.config.recompute_num_layers": "model.activations_checkpoint_num_layers",
    "optim.config.optimizer": "model.optim.name",
    "optim.config.adam_eps": "model.optim.eps",
    "optim.config.clip_grad": "trainer.gradient_clip_val",
    "optim.lr_scheduler._target_": f"{SCHEDULE}.name",
    "trainer.plugins.precision": "trainer.precision",
    "log.name": "name",
}
"""NeMo 1's name of a key that its beginning does not give."""
NAMES_OF_CLASSES = {
    "adam": DISTRIBUTED[0],
    "MockDataModule": "mock",
    "PreTrainingDataModule": "mmap",
    **{
        f"{name}Scheduler": name for name in ("WarmupPolicy", "WarmupHoldPolicy", "CosineAnnealing")
    },
    **{f"{name}Scheduler": name for name in ("WarmupAnnealing", "PolynomialDecayAnnealing")},
}
"""NeMo 1's names for NeMo 2's classes and optimiser."""

NOTHING_KNOWN = {
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "model.bias_activation_fusion": True,
}
"""Values for a model whose class is not known, so that defaults of GPT are not reported for it."""
_ROTARY = NOTHING_KNOWN | {"model.position_embedding_type": "rope", "model.activation": "swiglu"}
_GPT = {"model.init_method_std": 0.02, "model.bias_activation_fusion": True}
_LLAMA = _ROTARY | {
    "model.normalization": "rmsnorm",
    "model.bias": False,
    "model.share_embeddings_and_output_weights": False,
}
_QWEN3 = _ROTARY | {"model.override_vocab_size": 151_936}
MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    name: (option, values)
    for values, names in (
        ({}, "GPTConfig="),
        (_GPT, "GPTConfig126M=gpt3_126m GPTConfig5B=gpt3_5b GPTConfig20B=gpt3_20b"),
        (_GPT | NOTHING_KNOWN, "GPTConfig175B=gpt3_175b"),
        (_LLAMA, "LlamaConfig="),
        (_ROTARY, "Llama2Config7B=llama2_7b Llama3Config8B=llama3_8b Llama3Config70B=llama3_70b"),
        (_ROTARY, "Llama31Config405B=llama31_405b Llama32Config1B=llama32_1b"),
        (_ROTARY, "Llama32Config3B=llama32_3b"),
        (_ROTARY | {"model.window_size": [4096, 0]}, "MistralConfig7B=mistral_7b"),
        (_QWEN3, "Qwen3Config600M=qwen3_0p6b Qwen3Config1P7B=qwen3_1p7b Qwen3Config4B=qwen3_4b"),
        (_QWEN3, "Qwen3Config8B=qwen3_8b Qwen3Config14B=qwen3_14b Qwen3Config32B=qwen3_32b"),
    )
    for name, _, option in (word.partition("=") for word in names.split())
}
"""For each of NeMo 2's model classes: an option of conf/model, or "", and values beside it."""
CLASSES = frozenset(
    name
    for names in (
        "pretrain GPTModel LlamaModel MistralModel Qwen3Model MockDataModule PreTrainingDataModule",
        "Trainer MegatronStrategy MegatronMixedPrecision MegatronOptimizerModule OptimizerConfig",
        "TimingCallback GarbageCollectionCallback MegatronCommOverlapCallback NsysCallback",
        "MemoryMonitor MemoryProfileCallback FLOPsMeasurementCallback PreemptionCallback",
        "ProgressPrinter MegatronProgressBar SpeedMonitor RuntimeEstimator DdpParityChecker",
        "PytorchProfilerCallback OptimizerMonitor LearningRateMonitor ModelCheckpoint",
    )
    for name in names.split()
)
"""NeMo 2's classes and functions that change neither the model nor the numbers by themselves."""
