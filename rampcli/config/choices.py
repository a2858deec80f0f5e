"""The choices of settings, as they are typed."""

from enum import StrEnum


class Resume(StrEnum):
    """Whether a run resumes from a checkpoint in its run directory."""

    auto = "auto"
    never = "never"
    must = "must"


class DataSource(StrEnum):
    """Where samples come from."""

    stdlib = "stdlib"
    mock = "mock"
    indexed = "indexed"
    text = "text"


class Accelerator(StrEnum):
    """Type of device that workers compute on."""

    auto = "auto"
    cpu = "cpu"
    gpu = "gpu"


class Precision(StrEnum):
    """Precision of the forward and backward pass. Weights and reductions are fp32."""

    fp32 = "fp32"
    bf16 = "bf16"


class RampSemantics(StrEnum):
    """Whose rule turns `[start, increment, samples]` into batch sizes."""

    megatron = "megatron"
    maxtext = "maxtext"


# A class body could not name a member `continue`, which is a keyword.
AtBoundary = StrEnum("AtBoundary", {"stop": "stop", "continue": "continue"})
AtBoundary.__doc__ = "What happens when the batch size changes."


class Launcher(StrEnum):
    """How workers are started."""

    local = "local"
    slurm = "slurm"


class NodePolicy(StrEnum):
    """How the number of nodes of a batch size is chosen; see `rampcli.batch.nodes`."""

    nemo = "nemo"
    best = "best"
    fixed = "fixed"


class ActivationCheckpointing(StrEnum):
    """Which activations are recomputed in the backward pass instead of being kept."""

    none = "none"
    selective = "selective"
    full = "full"


class AccumulateReduce(StrEnum):
    """When gradients are reduced over the ranks."""

    last = "last"
    each = "each"


class OnNonfinite(StrEnum):
    """Response to a loss or gradient that is not finite."""

    stop = "stop"
    skip = "skip"


class Optimizer(StrEnum):
    """The optimiser; see `rampcli.train.optimizers`."""

    adamw = "adamw"
    muon = "muon"


class DecayStyle(StrEnum):
    """Shape of the learning rate's decay; see `rampcli.schedule.learning_rate`."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"
    quarter_cosine = "quarter_cosine"
    wsd = "wsd"
    inverse_sqrt = "inverse_sqrt"
    seesaw = "seesaw"


class BatchCoupling(StrEnum):
    """How a batch below the largest scales the learning rate."""

    none = "none"
    sqrt = "sqrt"
    linear = "linear"


class Normalization(StrEnum):
    """Type of normalisation."""

    rmsnorm = "rmsnorm"
    layernorm = "layernorm"


class Activation(StrEnum):
    """Activation function of the feed-forward layers."""

    swiglu = "swiglu"
    gelu = "gelu"


class PositionEmbedding(StrEnum):
    """How positions are encoded."""

    rope = "rope"
    learned = "learned"
