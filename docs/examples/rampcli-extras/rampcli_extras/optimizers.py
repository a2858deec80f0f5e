"""The optimiser Lion (arXiv 2302.06675): `optim.optimizer=lion`."""

from dataclasses import dataclass
from typing import Any

from rampcli.extend import optimizer, setting


@dataclass(kw_only=True, slots=True)
class Lion:
    """Lion's settings: `optim.lion.beta1` and `optim.lion.beta2`."""

    beta1: float = setting(
        0.9, "Share of the momentum in the direction of a step.", at_least=0, below=1
    )
    beta2: float = setting(0.99, "Decay rate of the momentum.", at_least=0, below=1)


@optimizer("lion", settings=Lion, reads=["weight_decay"])
def lion(parameters: dict[str, Any], optim: Any, settings: Lion) -> Any:
    """Returns Lion for this rank's parameters, with weight decay on matrices only."""
    from rampcli_extras.lion import LionOptimizer  # imports torch

    matrices = [one for one in parameters.values() if one.ndim >= 2]
    vectors = [one for one in parameters.values() if one.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return LionOptimizer(groups, lr=optim.lr, betas=(settings.beta1, settings.beta2))
