"""How the learning rate, AdamW's second decay rate and the weight decay follow the batch.

`optim.beta2` and `optim.weight_decay` are their values at the largest batch. With `r`, a batch
divided by the largest one, and `f`, the factor by which its batch or its stage scales the learning
rate:

* beta2 ** r halves the weight of a gradient after the same number of tokens (arXiv 2507.07101).
* weight decay x r / f leaves learning rate x weight decay / batch as it is. Its inverse, over the
  samples of the run, is the timescale of AdamW's average (arXiv 2505.13738).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchCoupling:
    """How a batch below the largest scales the learning rate.

    Attributes:
        about: the factor, for the description of `schedule.batch_coupling`.
        factor: maps the batch as a share of the largest one to a factor of the learning rate.
    """

    about: str
    factor: Callable[[float], float]


BATCH_COUPLINGS: dict[str, BatchCoupling] = {
    "none": BatchCoupling("by 1", lambda _: 1.0),
    "sqrt": BatchCoupling("by the square root of r", math.sqrt),  # arXiv 2205.10287
    "linear": BatchCoupling("by r", lambda share: share),  # arXiv 1706.02677
}


def coupling_factor(coupling: str | float, share: float) -> float:
    """Returns the factor of the learning rate by a coupling, which may be an exponent.

    Args:
        share: the batch divided by the one whose rate is known.
    """
    if isinstance(coupling, str):
        return BATCH_COUPLINGS[coupling].factor(share)
    return math.pow(share, coupling)


@dataclass(frozen=True, slots=True)
class ValueCoupling:
    """How a value of the optimiser follows the batch.

    Attributes:
        about: the value, for the description of its setting.
        value: maps the value at the largest batch, r and f to that of a step; None if it stays.
    """

    about: str
    value: Callable[[float, float, float], float] | None = None


BETA2_COUPLINGS: dict[str, ValueCoupling] = {
    "none": ValueCoupling("it stays"),
    "half_life": ValueCoupling(
        "to the power of r, so that its half-life in tokens stays", lambda beta2, r, _: beta2**r
    ),
}
WEIGHT_DECAY_COUPLINGS: dict[str, ValueCoupling] = {
    "none": ValueCoupling("it stays"),
    "timescale": ValueCoupling(
        "times r / f, where f is the factor of the learning rate, so that AdamW's timescale stays",
        lambda decay, r, f: decay * r / f,
    ),
}
