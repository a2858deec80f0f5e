"""The values that settings choose from, as they are typed."""

from enum import StrEnum


class Resume(StrEnum):
    """What to do with a run directory that already holds checkpoints."""

    auto = "auto"
    never = "never"
    must = "must"


class DataSource(StrEnum):
    """Where the samples come from."""

    stdlib = "stdlib"
    mock = "mock"
    indexed = "indexed"
    text = "text"


class Accelerator(StrEnum):
    """What the workers compute on."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Precision(StrEnum):
    """Of parameters in the forward and backward pass; gradients are reduced and weights kept in fp32."""

    fp32 = "fp32"
    bf16 = "bf16"


class RampSemantics(StrEnum):
    """Whose rule turns `[start, increment, samples]` into batch sizes."""

    megatron = "megatron"
    maxtext = "maxtext"


AtBoundary = StrEnum(
    "AtBoundary", {"stop": "stop", "continue": "continue"}
)  # `continue` is a keyword: no class body can hold it
AtBoundary.__doc__ = "What happens where the batch size changes."


class Launcher(StrEnum):
    """Who starts the workers."""

    local = "local"
    slurm = "slurm"


class NodePolicy(StrEnum):
    """How many nodes each batch size gets; see `rampcli.batch.nodes`."""

    nemo = "nemo"
    best = "best"
    fixed = "fixed"


class ActivationCheckpointing(StrEnum):
    """What of a forward pass is computed again for the backward pass, instead of being kept."""

    none = "none"
    selective = "selective"
    full = "full"


class AccumulateReduce(StrEnum):
    """When gradients are reduced over the ranks."""

    last = "last"
    each = "each"


class OnNonfinite(StrEnum):
    """What to do about a loss or a gradient that is not finite."""

    stop = "stop"
    skip = "skip"


class Optimizer(StrEnum):
    """Which optimiser; see `rampcli.train.optimizers`."""

    adamw = "adamw"
    muon = "muon"


class DecayStyle(StrEnum):
    """How the learning rate falls; see `rampcli.schedule.learning_rate`."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    quarter_cosine = "quarter_cosine"
    wsd = "wsd"
    inverse_sqrt = "inverse_sqrt"
    seesaw = "seesaw"


class BatchCoupling(StrEnum):
    """How a batch below the target scales the learning rate."""

    none = "none"
    sqrt = "sqrt"
    linear = "linear"


class Normalization(StrEnum):
    """Which normalisation."""

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
