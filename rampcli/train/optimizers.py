"""Builds the optimisers. The loop sets the learning rate of their groups before each step."""

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name

from torch import nn
from torch.optim import AdamW
from torch.optim import Optimizer as TorchOptimizer

from rampcli.config.extension_settings import extension_function
from rampcli.config.optimizers import OPTIMIZERS
from rampcli.config.schema.optim import OptimConfig
from rampcli.extensions import OPTIMIZER
from rampcli.models.decoder import Decoder
from rampcli.train.muon import Muon


def build_optimizers(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Returns the optimisers of `optim.optimizer` for this rank's parts of a model.

    Each parameter belongs to exactly one of them.

    Raises:
        UsageError: the optimiser is an extension that is not known here.
    """
    extension = extension_function(OPTIMIZER, optim.optimizer, optim)
    if extension is None:
        build = resolve_name(OPTIMIZERS[optim.optimizer].builder)
        built: list[TorchOptimizer] = build(parts, optim)
        return built
    parameters = {name: one for part in parts for name, one in part.named_parameters()}
    return [extension(parameters, optim)]


def build_adamw(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Returns AdamW (arXiv 1711.05101) for all parameters."""
    return [_adamw((parameter for part in parts for parameter in part.parameters()), optim)]


def build_muon(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Returns Muon for the layers' matrices, and AdamW for all other parameters."""
    matrices = [
        parameter for part in parts for parameter in part.layers.parameters() if parameter.ndim == 2
    ]
    chosen = set(matrices)
    rest = (
        parameter for part in parts for parameter in part.parameters() if parameter not in chosen
    )
    return [
        Muon(
            matrices,
            lr=optim.lr,
            weight_decay=optim.weight_decay,
            momentum=optim.muon_momentum,
            iterations=optim.muon_iterations,
        ),
        _adamw(rest, optim),
    ]


def _adamw(parameters: Iterable[nn.Parameter], optim: OptimConfig) -> AdamW:
    """Returns AdamW with weight decay on matrices and embeddings only."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)
