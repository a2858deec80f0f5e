"""Parts of a model that a setting chooses by name.

Everything else about a part follows from its entry: parameters, operations and memory
(`rampcli.models.parts`), the module that computes it, checks, and the weights of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """An activation function of the feed-forward layers.

    Attributes:
        function: module and name of the function, which maps a tensor to one of the same shape.
        options: keyword arguments of the function.
        is_gated: whether its result is multiplied by a second projection of the input
            (arXiv 2002.05202).
        kept: tensors of the inner width that a feed-forward layer keeps for its backward pass.
        hidden_act: name in transformers, or None if transformers has no such function.
    """

    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_gated: bool
    kept: int
    hidden_act: str | None = None


ACTIVATIONS = {
    "swiglu": Activation(
        function="torch.nn.functional:silu", is_gated=True, kept=4, hidden_act="silu"
    ),
    "gelu": Activation(  # GPT-2's approximation
        function="torch.nn.functional:gelu",
        options={"approximate": "tanh"},
        is_gated=False,
        kept=2,
        hidden_act="gelu_new",
    ),
}
"""Activation functions by `model.activation`.

To add an activation function: an entry here.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """A normalisation over the last dimension.

    Attributes:
        module: module and name of its class, which is called with a size and `eps`.
        vectors: parameters for each number of the input.
        statistics: numbers in fp32 that it keeps for each vector that it normalises.
        is_kept_in_fp32: whether a CPU keeps scaled inputs in fp32, and on DTensors the inputs too.
    """

    module: str
    vectors: int
    statistics: int
    is_kept_in_fp32: bool = False


NORMS = {
    "rmsnorm": Norm(
        module="rampcli.models.norm:RMSNorm", vectors=1, statistics=1, is_kept_in_fp32=True
    ),
    "layernorm": Norm(module="torch.nn:LayerNorm", vectors=2, statistics=2),
}
"""Normalisations by `model.normalization`.

To add a normalisation: an entry here, and its module in `rampcli/models/norm.py` if torch has none.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionEmbedding:
    """How a model knows the positions of its tokens.

    Attributes:
        is_learned: whether a learned vector for each position is added to the embedding.
        is_rotary: whether queries and keys are rotated by their positions (arXiv 2104.09864).
    """

    is_learned: bool = False
    is_rotary: bool = False


POSITION_EMBEDDINGS = {
    "rope": PositionEmbedding(is_rotary=True),
    "learned": PositionEmbedding(is_learned=True),
}
"""Position embeddings by `model.position_embedding`."""
