"""The settings of a run: mutable plain data. Derived facts are frozen and live in `rampcli.batch`.

A comment beside a field says what it is and its unit; conf/ owns the numbers. Fields that only take other systems' spellings
(`rampcli.batch.spellings`) stand last in their class: they are None in a resolved configuration and in the run directory.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Resume(StrEnum):
    """What to do with a run directory that already holds checkpoints."""

    auto = "auto"
    never = "never"
    must = "must"


class DataSource(StrEnum):
    """Where the samples come from."""

    stdlib = "stdlib"
    mock = "mock"


class Accelerator(StrEnum):
    """What the workers compute on; `auto` takes GPUs where this machine has enough of them, else the CPU."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Precision(StrEnum):
    """`bf16`: parameters are gathered and used in bf16, gradients reduced and weights kept in fp32."""

    fp32 = "fp32"
    bf16 = "bf16"


class RampSemantics(StrEnum):
    """Whose rule turns `[start, increment, samples]` into batch sizes."""

    megatron = "megatron"


AtBoundary = StrEnum("AtBoundary", {"stop": "stop", "continue": "continue"})  # `continue` is a keyword: no class body can hold it
AtBoundary.__doc__ = "`stop`: end the processes at every stage; `continue`: grow in place where the world size stays."


class NodePolicy(StrEnum):
    """How many nodes each batch size gets; see `rampcli.batch.nodes`."""

    nemo = "nemo"
    fixed = "fixed"


class Normalization(StrEnum):
    """Which normalisation stands before attention, before the feed-forward layer and at the end."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(StrEnum):
    """Which feed-forward layer."""

    swiglu = "swiglu"
    gelu = "gelu"


class PositionEmbedding(StrEnum):
    """How a token knows its place."""

    rope = "rope"
    learned = "learned"


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The decoder's shape, and the batch that it is trained with."""

    num_layers: int = 6
    hidden_size: int = 128
    ffn_hidden_size: int = 344
    num_attention_heads: int = 4
    num_query_groups: int | None = None  # heads of keys and values; null = one for each attention head
    vocab_size: int = 256
    normalization: Normalization = Normalization.rmsnorm
    norm_epsilon: float = 1e-5
    activation: Activation = Activation.swiglu
    position_embedding: PositionEmbedding = PositionEmbedding.rope
    rotary_base: float = 10_000.0
    bias: bool = False  # in the linear layers
    tie_embeddings: bool = False  # the output projection is the token embedding
    init_std: float = 0.02  # of the normal distribution that weights are drawn from
    global_batch_size: int | None = None  # samples per optimiser step, at the end of a ramp; null = derived
    rampup_batch_size: list[int] | None = None  # [start, increment, samples] or null

    micro_batch_size: int | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """The samples."""

    source: DataSource = DataSource.stdlib
    sequence_length: int = 128  # tokens per sample
    micro_batch_size: int | None = None  # samples per data-parallel rank per forward/backward; null = derived
    audit_order: bool = False  # gather the indices that the ranks really read, for order_hash

    global_batch_size: int | None = None


@dataclass(kw_only=True, slots=True)
class StrategySpellings:
    """NeMo 2's `trainer.strategy`: spellings only."""

    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None


@dataclass(kw_only=True, slots=True)
class TrainerConfig:
    """How long, on what, and how a step is taken."""

    num_nodes: int = 1  # the most nodes; a ramp may use fewer
    devices: int = 1  # processes (GPUs) per node
    accelerator: Accelerator = Accelerator.auto
    precision: Precision = Precision.fp32
    accumulate_grad_batches: int | None = None  # micro batches per optimiser step, at the end of a ramp; null = derived
    max_steps: int | None = None  # optimiser steps
    max_samples: int | None = None
    max_tokens: int | None = None
    gradient_clip_val: float | None = 1.0  # largest norm of the gradient; null = no clipping
    val_every_steps: int | None = None  # optimiser steps between validations; null = only before the first step and after the last
    val_samples: int = 0  # samples per validation; 0 = no validation
    peak_tflops: float | None = None  # of one process's device, for mfu; null = mfu is not reported

    strategy: StrategySpellings = field(default_factory=StrategySpellings)


@dataclass(kw_only=True, slots=True)
class ParallelConfig:
    """How many ways the model is split; the rest of the processes are data parallel."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1


@dataclass(kw_only=True, slots=True)
class OptimConfig:
    """AdamW, and a learning rate that is a function of consumed samples: linear warm-up, then a cosine down to `min_lr` at the end."""

    lr: float = 1e-3
    min_lr: float = 0.0
    warmup_samples: int | None = None  # one of the two, or neither
    warmup_steps: int | None = None  # optimiser steps, converted to samples through the plan
    weight_decay: float = 0.1  # on matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8


@dataclass(kw_only=True, slots=True)
class RampupConfig:
    """What a ramp means and what happens at its stages."""

    semantics: RampSemantics = RampSemantics.megatron
    at_boundary: AtBoundary = AtBoundary["stop"]
    node_policy: NodePolicy = NodePolicy.nemo


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Checkpoints besides those at boundaries, on signals and at the end."""

    every_steps: int | None = None  # optimiser steps; null = only at boundaries, on signals and at the end
    keep_last: int = 2  # checkpoints


class Traced:
    """Carries where a configuration's values came from (`rampcli.config.origin.Origin`), beside its fields."""

    __slots__ = ("origin",)
    origin: Any


@dataclass(kw_only=True, slots=True)
class Config(Traced):
    """A run."""

    name: str = "run"
    run_dir: str | None = None  # null = runs/NAME
    seed: int = 1234
    resume: Resume = Resume.auto
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    rampup: RampupConfig = field(default_factory=RampupConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
