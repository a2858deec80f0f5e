"""The settings of a run, as mutable plain data.

Each setting has a description, a unit and a range; conf/ owns the numbers. Fields that only accept
spellings of other systems (`rampcli.words.spellings`) come last in their class. They are
None in a resolved configuration.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from rampcli.config.bridge_schema import (
    DatasetSpellings,
    OptimizerSpellings,
    SchedulerSpellings,
    TrainSpellings,
)
from rampcli.config.data_schema import DataConfig
from rampcli.config.fields import Extensible, setting, spelling
from rampcli.config.launch_schema import (
    CheckpointConfig,
    LaunchConfig,
    RampupConfig,
    ThroughputConfig,
)
from rampcli.config.optim_schema import OptimConfig, ScheduleConfig
from rampcli.config.rl_schema import RLConfig
from rampcli.config.watch_schema import GenerateConfig, LoggingConfig, ProfileConfig

MOST_WIDTH = 1_000_000
MOST_VOCABULARY = 100_000_000
"""Limits above any real model, so that a wrong number is refused before anything is allocated."""

Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["fp32", "bf16"]
ActivationCheckpointing = Literal["none", "selective", "full"]
OnNonfinite = Literal["stop", "skip"]


@dataclass(kw_only=True, slots=True)
class ModelConfig(Extensible):
    """The decoder's shape, and the batch that it is trained with."""

    family: str = setting(
        "decoder",
        "Architecture. `decoder`: the transformer that the settings below describe.",
        choices=("decoder",),
        extensible=True,
    )
    num_layers: int = setting(6, "Number of layers.", at_least=1, at_most=10_000)
    hidden_size: int = setting(128, "Width of the residual stream.", at_least=1, at_most=MOST_WIDTH)
    ffn_hidden_size: int = setting(
        344, "Inner width of the feed-forward layers.", at_least=1, at_most=MOST_WIDTH
    )
    num_attention_heads: int = setting(4, "Number of query heads.", at_least=1, at_most=MOST_WIDTH)
    head_size: int | None = setting(
        None,
        "Width of an attention head. `null`: `hidden_size` divided by `num_attention_heads`.",
        at_least=1,
        at_most=MOST_WIDTH,
    )
    num_query_groups: int | None = setting(
        None,
        "Number of key and value heads; must divide `num_attention_heads`. `null`: one per query"
        " head.",
        at_least=1,
    )
    vocab_size: int | None = setting(
        256,
        "Size of the vocabulary. `null`: that of the tokenizer, from 1,024 tokens on padded to a"
        " multiple of 128 x `parallel.tensor_parallel_size`.",
        at_least=1,
        at_most=MOST_VOCABULARY,
    )
    normalization: Literal["rmsnorm", "layernorm"] = setting(
        "rmsnorm",
        "Normalisation before attention, before the feed-forward layer and after the last layer.",
    )
    norm_epsilon: float = setting(1e-5, "Epsilon of the normalisation.", above=0)
    activation: Literal["swiglu", "gelu"] = setting(
        "swiglu", "Activation function of the feed-forward layers."
    )
    position_embedding: Literal["rope", "learned"] = setting(
        "rope", "How positions are encoded. `rope` needs an even head size."
    )
    rotary_base: float = setting(10_000.0, "Base frequency of RoPE.", above=0)
    rotary_scale_factor: float | None = setting(
        None,
        "Factor by which RoPE scaling slows low frequencies (Llama 3.1). `null`: no scaling.",
        at_least=1,
    )
    rotary_low_freq_factor: float = setting(
        1.0, "Low-frequency factor of RoPE scaling (Llama 3.1).", above=0
    )
    rotary_high_freq_factor: float = setting(
        4.0, "High-frequency factor of RoPE scaling (Llama 3.1).", above=0
    )
    rotary_original_length: int = setting(
        8192, "Context length before RoPE scaling (Llama 3.1).", unit="tokens", at_least=1
    )
    qk_norm: bool = setting(False, "Normalise each head's queries and keys with RMSNorm (Qwen3).")
    sliding_window: int | None = setting(
        None,
        "Number of most recent tokens that a token attends to, including itself (Mistral)."
        " `null`: all earlier tokens.",
        unit="tokens",
        at_least=1,
    )
    bias: bool = setting(False, "Add biases to the linear layers.")
    tie_embeddings: bool = setting(False, "Use the token embedding as the output projection.")
    init_std: float = setting(0.02, "Standard deviation of the initial weights.", above=0)
    huggingface_type: Literal["llama", "mistral"] | None = setting(
        None,
        "Class of transformers that `rampcli export` writes for a model that both compute. `null`:"
        " Llama's where it can, else the one that can.",
    )
    init_from: str | None = setting(
        None,
        "Where the initial weights are: a Hugging Face folder, a model of the hub as `NAME@COMMIT`,"
        " or the directory of a run, whose newest checkpoint is read. `null`: random weights.",
    )
    global_batch_size: int | None = setting(
        None,
        "Samples per optimiser step, at the end of a ramp. `null`: derived.",
        unit="samples",
        at_least=1,
    )
    rampup_batch_size: list[int] | None = setting(
        None, "Batch-size ramp, `[start, increment, samples]`. `null`: no ramp.", unit="samples"
    )
    step_batch_size_schedule: str | None = setting(
        None,
        "Batch sizes from given points on, `'0:768 250B:1536'`. The points count tokens, or samples"
        " with `samples:` in front. `null`: no schedule.",
        unit="tokens or samples : samples",
    )

    micro_batch_size: int | None = spelling()
    tensor_model_parallel_size: int | None = spelling()
    pipeline_model_parallel_size: int | None = spelling()
    context_parallel_size: int | None = spelling()
    seq_length: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class StrategySpellings:
    """NeMo 2's `trainer.strategy`. Its fields are spellings only."""

    tensor_model_parallel_size: int | None = spelling()
    pipeline_model_parallel_size: int | None = spelling()
    context_parallel_size: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """Hardware, length of the run, and how a step is computed.

    At most one of `max_steps`, `max_samples` and `max_tokens` is set. Without them, the run has no
    end.
    """

    num_nodes: int = setting(
        1,
        "Number of nodes, at most. A ramp may use fewer.",
        unit="nodes",
        at_least=1,
        at_most=100_000,
    )
    devices: int = setting(
        1, "Processes per node, one per GPU.", unit="processes", at_least=1, at_most=10_000
    )
    accelerator: Accelerator = setting(
        "auto",
        "Device type. `auto`: GPUs if this machine has enough for the largest stage, else the CPU.",
    )
    precision: Precision = setting(
        "fp32",
        "Precision of the forward and backward pass. `bf16`: parameters are gathered and used in"
        " bf16; gradients are reduced and weights kept in fp32.",
    )
    accumulate_grad_batches: int | None = setting(
        None,
        "Micro batches per optimiser step, where the batch is largest. `null`: derived.",
        unit="micro batches",
        at_least=1,
    )
    max_steps: int | None = setting(
        None, "Length of the run in steps. `null`: not set.", unit="optimiser steps", at_least=1
    )
    max_samples: int | None = setting(
        None, "Length of the run in samples. `null`: not set.", unit="samples", at_least=1
    )
    max_tokens: int | None = setting(
        None, "Length of the run in tokens. `null`: not set.", unit="tokens", at_least=1
    )
    accumulate_reduce: Literal["last", "each"] = setting(
        "last",
        "When gradients are reduced over the ranks. `last`: once per step. `each`: after each micro"
        " batch, which needs less memory.",
    )
    activation_checkpointing: ActivationCheckpointing = setting(
        "none",
        "Activations recomputed in the backward pass. `full`: everything but each layer's input."
        " `selective`: everything but the input and the results of matrix products.",
    )
    compile: bool = setting(
        False,
        "Compile the layers with torch.compile before the first step. Needs a C++ compiler."
        " Compiled code is cached for later runs.",
    )
    gradient_clip_val: float | None = setting(
        1.0, "Maximum gradient norm. `null`: no clipping.", above=0
    )
    on_nonfinite: OnNonfinite = setting(
        "stop",
        "Response to a loss or gradient that is not finite. `stop`: end the run. `skip`: leave the"
        " weights unchanged in that step.",
    )
    val_every_steps: int | None = setting(
        None,
        "Interval between validations. `null`: only before the first step and after the last.",
        unit="optimiser steps",
        at_least=1,
    )
    val_samples: int | None = setting(
        0,
        "Samples per validation. `null`: as many as the validation corpora have, up to"
        " `max_val_samples`. `0`: no validation.",
        unit="samples",
        at_least=0,
    )
    max_val_samples: int = setting(
        256, "Samples per validation at most, if `val_samples` is null.", unit="samples", at_least=0
    )
    peak_tflops: float | None = setting(
        None,
        "Peak throughput of one device, for `mfu` and for the hours in a plan. `null`: unknown.",
        unit="TFLOP/s",
        above=0,
    )
    device_memory_gb: float | None = setting(
        None,
        "Memory of one device, for the estimates in a plan. `null`: that of this machine's GPUs if"
        " it has some, else unknown.",
        unit="GB of 2^30 bytes",
        above=0,
    )

    strategy: StrategySpellings = field(default_factory=StrategySpellings)


@dataclass(kw_only=True, slots=True)
class ParallelConfig:
    """How the model is split. The remaining processes are data parallel."""

    tensor_parallel_size: int = setting(1, "Ranks that share each layer.", at_least=1)
    pipeline_parallel_size: int = setting(
        1, "Pipeline stages that the layers are divided into.", at_least=1
    )
    context_parallel_size: int = setting(1, "Ranks that share each sequence.", at_least=1)
    data_parallel_shard_size: int | None = setting(
        None,
        "Data-parallel ranks that share one copy of the weights; must divide their number. `1`:"
        " each rank has a copy. `null`: all ranks share one.",
        at_least=1,
    )
    virtual_pipeline_parallel_size: int = setting(
        1,
        "Groups of layers per pipeline rank, for the interleaved schedule. `1`: the 1F1B schedule.",
        at_least=1,
    )
    num_pipeline_microbatches: int | None = setting(
        None,
        "Parts of a micro batch that pass through the pipeline one after another; a multiple of"
        " the stages. `null`: the accumulated micro batches pass instead.",
        at_least=1,
    )


class Traced:
    """Holds the layers that a configuration was made from (`rampcli.config.layers.Stack`)."""

    __slots__ = ("stack",)
    stack: Any


@dataclass(kw_only=True, slots=True)
class Config(Traced):
    """A run."""

    name: str = setting("run", "Name of the run, and of its run directory.")
    run_dir: str | None = setting(None, "Run directory. `null`: `runs/NAME`.")
    seed: int = setting(
        1234,
        "Seed of the initial weights, of the order of samples and of `data.source=mock`.",
        at_least=0,
        at_most=2**62,
    )
    resume: Literal["auto", "never", "must"] = setting(
        "auto",
        "Whether to resume from a checkpoint in the run directory. `auto`: if there is one."
        " `never`: refuse a run directory that has one. `must`: refuse one that has none.",
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    rampup: RampupConfig = field(default_factory=RampupConfig)
    throughput: ThroughputConfig = field(default_factory=ThroughputConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)

    train: TrainSpellings = field(default_factory=TrainSpellings)
    dataset: DatasetSpellings = field(default_factory=DatasetSpellings)
    scheduler: SchedulerSpellings = field(default_factory=SchedulerSpellings)
    optimizer: OptimizerSpellings = field(default_factory=OptimizerSpellings)
    per_device_batch_size: float | None = spelling()
    gradient_accumulation_steps: int | None = spelling()
    expansion_factor_real_data: float | None = spelling()
    num_pipeline_microbatches: int | None = spelling()
    enable_rampup_batch_size: bool | None = spelling()
    per_device_batch_size_start: float | None = spelling()
    per_device_batch_size_increment: float | None = spelling()
    global_rampup_samples: int | None = spelling()
    ici_tensor_parallelism: int | None = spelling()
    dcn_tensor_parallelism: int | None = spelling()
    ici_pipeline_parallelism: int | None = spelling()
    dcn_pipeline_parallelism: int | None = spelling()
    ici_context_parallelism: int | None = spelling()
    dcn_context_parallelism: int | None = spelling()
    ici_fsdp_parallelism: int | None = spelling()
    dcn_fsdp_parallelism: int | None = spelling()
    ici_data_parallelism: int | None = spelling()
    dcn_data_parallelism: int | None = spelling()
