"""The settings of a run: mutable plain data. Derived facts are frozen and live in `rampcli.batch`.

Each setting says what it is, its unit and its range; conf/ owns the numbers. Fields that only take other systems' spellings
(`rampcli.batch.dialects.spellings`) stand last in their class: they are None in a resolved configuration and in the run directory.
"""

from dataclasses import dataclass, field
from typing import Any

from rampcli.config.choices import (
    Accelerator,
    AccumulateReduce,
    Activation,
    ActivationCheckpointing,
    AtBoundary,
    BatchCoupling,
    DataSource,
    DecayStyle,
    NodePolicy,
    Normalization,
    OnNonfinite,
    Optimizer,
    PositionEmbedding,
    Precision,
    RampSemantics,
    Resume,
)
from rampcli.config.fields import setting, spelling
from rampcli.config.launch_schema import LaunchConfig

MOST_WIDTH = 1_000_000
MOST_SEQUENCE = 16_000_000
MOST_VOCABULARY = 100_000_000
"""No model is larger, so that a wrong number is refused before anything is allocated."""


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The decoder's shape, and the batch that it is trained with."""

    num_layers: int = setting(6, "layers", at_least=1, at_most=10_000)
    hidden_size: int = setting(128, "width of the residual stream", at_least=1, at_most=MOST_WIDTH)
    ffn_hidden_size: int = setting(
        344, "width inside the feed-forward layers", at_least=1, at_most=MOST_WIDTH
    )
    num_attention_heads: int = setting(4, "heads of queries", at_least=1, at_most=MOST_WIDTH)
    head_size: int | None = setting(
        None,
        "width of a head. `null`: `hidden_size` over `num_attention_heads`, which then has to divide it",
        at_least=1,
        at_most=MOST_WIDTH,
    )
    num_query_groups: int | None = setting(
        None,
        "heads of keys and values; divides `num_attention_heads`. `null`: one for each attention head",
        at_least=1,
    )
    vocab_size: int = setting(256, "tokens in the vocabulary", at_least=1, at_most=MOST_VOCABULARY)
    normalization: Normalization = setting(
        Normalization.rmsnorm,
        "the normalisation before attention, before the feed-forward layer and at the end",
    )
    norm_epsilon: float = setting(1e-5, "in the normalisation", above=0)
    activation: Activation = setting(Activation.swiglu, "the feed-forward layer")
    position_embedding: PositionEmbedding = setting(
        PositionEmbedding.rope, "how a token knows its place; `rope` wants heads of an even size"
    )
    rotary_base: float = setting(10_000.0, "of `rope`", above=0)
    rotary_scale_factor: float | None = setting(
        None,
        "Llama 3.1's scaling of `rope`: slow rotations are slowed by this. `null`: none",
        at_least=1,
    )
    rotary_low_freq_factor: float = setting(
        1.0,
        "of that scaling: rotations that turn fewer times than this in `rotary_original_length` are slowed wholly",
        above=0,
    )
    rotary_high_freq_factor: float = setting(
        4.0, "those that turn more often than this are left as they are", above=0
    )
    rotary_original_length: int = setting(
        8192, "the length that `rope` was trained for before its scaling", unit="tokens", at_least=1
    )
    qk_norm: bool = setting(False, "RMSNorm of each head's queries and keys, as Qwen3 has it")
    sliding_window: int | None = setting(
        None,
        "tokens that a token sees, itself included, as Mistral has it. `null`: all before it",
        unit="tokens",
        at_least=1,
    )
    bias: bool = setting(False, "biases in the linear layers")
    tie_embeddings: bool = setting(False, "the output projection is the token embedding")
    init_std: float = setting(0.02, "standard deviation of the initial weights", above=0)
    init_from: str | None = setting(
        None, "a Hugging Face folder that the weights are taken from instead. `null`: none"
    )
    global_batch_size: int | None = setting(
        None,
        "samples per optimiser step, at the end of a ramp. `null`: derived",
        unit="samples",
        at_least=1,
    )
    rampup_batch_size: list[int] | None = setting(
        None, "`[start, increment, samples]`. `null`: no ramp", unit="samples"
    )
    step_batch_size_schedule: str | None = setting(
        None,
        "batch sizes at thresholds, `'0:768 250B:1536'`: thresholds in tokens, or in samples with `samples:` in front. `null`: none",
        unit="tokens or samples : samples",
    )

    micro_batch_size: int | None = spelling()
    tensor_model_parallel_size: int | None = spelling()
    pipeline_model_parallel_size: int | None = spelling()
    context_parallel_size: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """The samples."""

    source: DataSource = setting(
        DataSource.stdlib,
        "`indexed`: tokens of `rampcli data build` or of Megatron's preprocessing. `text`: text files, read into memory. `stdlib`: the"
        " source of Python's standard library as bytes. `mock`: random tokens",
    )
    sequence_length: int = setting(
        128, "tokens per sample", unit="tokens", at_least=1, at_most=MOST_SEQUENCE
    )
    micro_batch_size: int | None = setting(
        None,
        "samples per data-parallel rank and forward/backward pass. `null`: derived",
        unit="samples",
        at_least=1,
    )
    path: str | None = setting(
        None,
        "`indexed`: what the names of the two files have in common. `text`: a file or folder. `null`: a blend",
    )
    blend: list[str] | None = setting(
        None,
        "several corpora with their weights, `[0.7,data/wiki,0.3,data/code]`; each path as in `path`. `null`: one corpus",
    )
    split: list[float] = setting(
        [99.0, 1.0, 0.0],
        "shares of each corpus's documents that are for training, validation and testing, in the order of the documents; of the tokens"
        " where there is one document",
    )
    validation_path: str | None = setting(
        None,
        "a corpus for validation, all of it; `split` does not count then. `null`: `split` says",
    )
    tokenizer: str = setting(
        "bytes", "of `text`: `bytes`, `chars` (those that the text has) or a `tokenizer.json`"
    )
    eod_mask_loss: bool = setting(
        False, "the first token of a document, which nothing in it comes before, is not asked for"
    )
    document_mask: bool = setting(
        False, "that, and attention and positions begin anew with every document"
    )
    pad_last_window: bool = setting(
        False, "tokens that are left over after the last whole sample are a sample too, padded"
    )
    expansion_factor_real_data: float | None = setting(
        None,
        "above 1: one host in so many reads, for all of them; below 1: a larger job's data on fewer hosts. `null`, or MaxText's -1: every"
        " host reads its own",
    )
    audit_order: bool = setting(
        False, "gather what the ranks really read, for `order_hash` in `metrics.jsonl`"
    )

    global_batch_size: int | None = spelling()
    rampup_batch_size: list[int] | None = spelling()


@dataclass(kw_only=True, slots=True)
class StrategySpellings:
    """NeMo 2's `trainer.strategy`: spellings only."""

    tensor_model_parallel_size: int | None = spelling()
    pipeline_model_parallel_size: int | None = spelling()
    context_parallel_size: int | None = spelling()


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """How long, on what, and how a step is taken. At most one of `max_steps`, `max_samples` and `max_tokens` is given."""

    num_nodes: int = setting(
        1, "the most nodes; a ramp may use fewer", unit="nodes", at_least=1, at_most=100_000
    )
    devices: int = setting(
        1, "processes (GPUs) per node", unit="processes", at_least=1, at_most=10_000
    )
    accelerator: Accelerator = setting(
        Accelerator.auto,
        "`auto`: GPUs where this machine has enough for the largest stage, else the CPU",
    )
    precision: Precision = setting(
        Precision.fp32,
        "`bf16`: parameters are gathered and used in bf16, gradients reduced and weights kept in fp32",
    )
    accumulate_grad_batches: int | None = setting(
        None,
        "micro batches per optimiser step, where the batch is largest. `null`: derived",
        unit="micro batches",
        at_least=1,
    )
    max_steps: int | None = setting(
        None, "the run's end. `null`: another end, or none", unit="optimiser steps", at_least=1
    )
    max_samples: int | None = setting(
        None, "the run's end. `null`: another end, or none", unit="samples", at_least=1
    )
    max_tokens: int | None = setting(
        None, "the run's end. `null`: another end, or none", unit="tokens", at_least=1
    )
    accumulate_reduce: AccumulateReduce = setting(
        AccumulateReduce.last,
        "gradients are reduced over the ranks once per step (`last`), or after each micro batch, which needs less memory (`each`)",
    )
    activation_checkpointing: ActivationCheckpointing = setting(
        ActivationCheckpointing.none,
        "`full`: of each layer only the input is kept for the backward pass; `selective`: also what its matrix products gave",
    )
    compile: bool = setting(
        False,
        "the layers are compiled before the first step (torch.compile); needs a C++ compiler. What is compiled is kept for later runs",
    )
    gradient_clip_val: float | None = setting(
        1.0, "largest norm of the gradient. `null`: no clipping", above=0
    )
    on_nonfinite: OnNonfinite = setting(
        OnNonfinite.stop,
        "a loss or gradient that is not finite ends the run (`stop`), or its step changes no weight (`skip`)",
    )
    val_every_steps: int | None = setting(
        None,
        "between validations. `null`: only before the first step and after the last",
        unit="optimiser steps",
        at_least=1,
    )
    val_samples: int = setting(0, "per validation. `0`: no validation", unit="samples", at_least=0)
    peak_tflops: float | None = setting(
        None,
        "peak of one process's device, for `mfu` and for the hours in a plan. `null`: unknown",
        unit="TFLOP/s",
        above=0,
    )

    strategy: StrategySpellings = field(default_factory=StrategySpellings)


@dataclass(kw_only=True, slots=True)
class ParallelConfig:
    """How many ways the model is split; the processes that are left are data parallel."""

    tensor_parallel_size: int = setting(1, "ways that each layer is split", at_least=1)
    pipeline_parallel_size: int = setting(1, "ways that the layers are divided up", at_least=1)
    context_parallel_size: int = setting(1, "ways that each sequence is split", at_least=1)
    data_parallel_shard_size: int | None = setting(
        None,
        "data-parallel ranks that share one copy of the weights; they divide them all. `1`: every rank has its own. `null`: all share one",
        at_least=1,
    )
    virtual_pipeline_parallel_size: int = setting(
        1,
        "parts of the layers that each pipeline rank has, for the interleaved schedule. `1`: 1F1B",
        at_least=1,
    )
    num_pipeline_microbatches: int | None = setting(
        None,
        "parts of a micro batch that go through the pipeline one after another; a multiple of the stages. `null`: the accumulated micro"
        " batches do",
        at_least=1,
    )


@dataclass(kw_only=True, slots=True)
class OptimConfig:
    """The optimiser, and the learning rate. At most one of the two warm-ups is given."""

    optimizer: Optimizer = setting(
        Optimizer.adamw,
        "`muon`: Muon for the matrices of the layers, scaled so that AdamW's learning rate fits, and AdamW for the rest",
    )
    lr: float = setting(1e-3, "highest learning rate", at_least=0)
    min_lr: float = setting(0.0, "learning rate at the end", at_least=0)
    warmup_samples: int | None = setting(
        None, "warm-up. `null`: the other one, or none", unit="samples", at_least=0
    )
    warmup_steps: int | None = setting(
        None,
        "warm-up, converted to samples through the plan. `null`: the other one, or none",
        unit="optimiser steps",
        at_least=0,
    )
    weight_decay: float = setting(0.1, "on matrices and embeddings only", at_least=0)
    beta1: float = setting(0.9, "AdamW's first decay rate", at_least=0, below=1)
    beta2: float = setting(0.95, "AdamW's second decay rate", at_least=0, below=1)
    eps: float = setting(1e-8, "AdamW's epsilon", above=0)
    muon_momentum: float = setting(0.95, "Muon's momentum", at_least=0, below=1)
    skip_step_sigma: float | None = setting(
        None,
        "a step whose loss or gradient norm lies more than so many standard deviations above the last 128 changes no weight. `null`: all"
        " steps count",
        above=0,
    )


@dataclass(kw_only=True, slots=True)
class ScheduleConfig:
    """How the learning rate falls over the samples, after a linear warm-up to `optim.lr`."""

    decay_style: DecayStyle = setting(
        DecayStyle.cosine,
        "`linear`, `cosine`, `quarter_cosine` (a cosine's first quarter) and `wsd` (constant, then linear over the last samples) end at"
        " `optim.min_lr`; `inverse_sqrt` falls with the root of the samples from the warm-up on, `seesaw` with the root of the batch",
    )
    wsd_decay_samples: int | None = setting(
        None, "of `wsd`. `null`: the last tenth of the run", unit="samples", at_least=1
    )
    batch_coupling: BatchCoupling = setting(
        BatchCoupling.none,
        "what a batch below the largest scales the rate by: nothing, the root of its share, or its share",
    )


@dataclass(kw_only=True, slots=True)
class RampupConfig:
    """What a ramp means and what happens at its stages."""

    semantics: RampSemantics = setting(
        RampSemantics.megatron, "whose rule turns `model.rampup_batch_size` into batch sizes"
    )
    at_boundary: AtBoundary = setting(
        AtBoundary["stop"],
        "`stop`: new processes at every stage. `continue`: the same ones where their number stays",
    )
    node_policy: NodePolicy = setting(NodePolicy.nemo, "how many nodes each batch size gets")
    decrease_batch_size_if_needed: bool = setting(
        False,
        "make a batch that fits nowhere smaller, down to whole micro batches on every rank, instead of refusing it",
    )
    efficiency: str | None = setting(
        None,
        "`'1:9000 4:11500'`: what one GPU does at 1 and at 4 micro batches per rank and step. `null`: the same at any",
        unit="micro batches : tokens/s",
    )
    restart_s: float = setting(
        60.0,
        "that new processes at a stage take to start, for `best` and for the hours in a plan",
        unit="seconds",
        at_least=0,
    )


@dataclass(kw_only=True, slots=True)
class ThroughputConfig:
    """What one GPU does, for the hours in a plan. `rampup.efficiency` comes first, then the first of these."""

    samples_per_s_per_gpu: float | None = setting(
        None, "`null`: estimated from `mfu`", unit="samples/s", above=0
    )
    mfu: float | None = setting(
        None,
        "share of `trainer.peak_tflops` that training reaches, for an estimate. `null`: no estimate",
        above=0,
        at_most=1,
    )


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints."""

    every_steps: int | None = setting(
        None,
        "between checkpoints, besides those at the end of each stage's processes, on signals and at the end. `null`: only those",
        unit="optimiser steps",
        at_least=1,
    )
    keep_last: int = setting(2, "how many are kept", unit="checkpoints", at_least=1)
    async_: bool = setting(
        False,
        "training goes on while a checkpoint is written; each host needs memory for a copy of what its processes save",
    )


class Traced:
    """Holds the layers that a configuration was made from (`rampcli.config.layers.Stack`), beside its fields."""

    __slots__ = ("stack",)
    stack: Any


@dataclass(kw_only=True, slots=True)
class Config(Traced):
    """A run."""

    name: str = setting("run", "names the run directory")
    run_dir: str | None = setting(None, "the run directory; `null` is `runs/NAME`")
    seed: int = setting(
        1234,
        "of the initial weights, the order of samples and the random tokens of `data.source=mock`",
        at_least=0,
        at_most=2**62,
    )
    resume: Resume = setting(
        Resume.auto,
        "`auto` goes on from a checkpoint where there is one; `never` refuses a run directory that has one; `must` one that has none",
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    rampup: RampupConfig = field(default_factory=RampupConfig)
    throughput: ThroughputConfig = field(default_factory=ThroughputConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)

    per_device_batch_size: float | None = spelling()
    gradient_accumulation_steps: int | None = spelling()
    expansion_factor_real_data: float | None = spelling()
    num_pipeline_microbatches: int | None = spelling()
    enable_rampup_batch_size: bool | None = spelling()
    per_device_batch_size_start: float | None = spelling()
    per_device_batch_size_increment: float | None = spelling()
    global_rampup_samples: int | None = spelling()
