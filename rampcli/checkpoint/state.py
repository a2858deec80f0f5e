"""Contents of a checkpoint: training state in its manifest, and tensors in its other files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rampcli.checkpoint.shards import NamedTensor
from rampcli.models.decoder import Decoder

MODEL, OPTIMIZER, AVERAGE = "model.", "optimizer.state.", "average."
"""Prefixes of the names of tensors."""
TOKENIZER, SPECIAL_TOKENS = "tokenizer.json", "special_tokens.json"

Averages = Mapping[str, Mapping[nn.Parameter, Tensor]]
"""Averages of the weights: by setting of the section `average`, and by parameter."""
AveragesAt = Callable[[int], Averages]
"""Returns the averages that have a value after some consumed samples."""


@dataclass(slots=True)
class TrainingState:
    """How far a run has come.

    Attributes:
        order_hash: hash of the order in which samples were read, or None if it is not audited.
        recent: loss and gradient norm of the last steps, with which later steps are compared.
    """

    step: int = 0
    consumed_samples: int = 0
    order_hash: str | None = None
    recent: list[tuple[float, float]] = field(default_factory=list)

    def advance(self, samples: int) -> None:
        """Counts a step of `samples` samples."""
        self.step += 1
        self.consumed_samples += samples


def named_tensors(
    parts: Sequence[Decoder],
    optimizers: Sequence[torch.optim.Optimizer],
    averages: Averages | None = None,
    *,
    copies: bool,
) -> Iterator[NamedTensor]:
    """Yields weights, their averages and optimiser state.

    Their names do not depend on how the model is split.

    Args:
        copies: also yield tied weights that another part of the model owns and saves.
    """
    states = {
        parameter: state for optimizer in optimizers for parameter, state in optimizer.state.items()
    }
    for part in parts:
        parameters = dict(part.named_parameters()) if copies else part.stage_parameters()
        for name, parameter in parameters.items():
            yield f"{MODEL}{name}", parameter, parameter
            for key, value in states.get(parameter, {}).items():
                yield f"{OPTIMIZER}{name}.{key}", value, parameter
            for kind, values in (averages or {}).items():
                yield f"{prefix_of(kind)}{name}", values[parameter], parameter


def prefix_of(kind: str) -> str:
    """Returns the beginning of the names of the tensors of `average.KIND`."""
    return f"{AVERAGE}{kind}."
