"""Builds the optimisers. The loop sets the learning rate of their groups before each step."""

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name

from torch import nn
from torch.optim import AdamW
from torch.optim import Optimizer as TorchOptimizer

from rampcli.config.extension_settings import extension_function
from rampcli.errors import UsageError, set_to
from rampcli.models.decoder import Decoder
from rampcli.plugins.extensions import OPTIMIZER_KEY
from rampcli.settings.config import Config
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.train.muon import Muon


def build_optimizers(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Returns the optimisers of `optim.optimizer` for this rank's parts of a model.

    Each parameter belongs to exactly one of them.

    Raises:
        UsageError: the optimiser is an extension that is not known here.
    """
    extension = extension_function(OPTIMIZER_KEY, optim.optimizer, optim)
    if extension is None:
        build = resolve_name(OPTIMIZERS[optim.optimizer].builder)
        built: list[TorchOptimizer] = build(parts, optim)
        return built
    parameters = {name: one for part in parts for name, one in part.named_parameters()}
    return [extension(parameters, optim)]


def check_coupled(optimizers: Sequence[TorchOptimizer], config: Config) -> None:
    """Checks that the optimisers have what follows the batch, with the values that follow it.

    Raises:
        UsageError: an extension keeps them elsewhere, or takes them from another setting.
    """
    schedule, optim = config.schedule, config.optim
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    decays = {group["weight_decay"] for group in groups if "weight_decay" in group}
    betas = {tuple(group["betas"][1:]) for group in groups if "betas" in group}
    for key, coupling, is_there, what in (
        (
            ScheduleConfig.beta2_coupling,
            schedule.beta2_coupling,
            betas == {(optim.beta2,)},
            "betas (.., optim.beta2)",
        ),
        (
            ScheduleConfig.weight_decay_coupling,
            schedule.weight_decay_coupling,
            optim.weight_decay in decays and decays <= {0.0, optim.weight_decay},
            "a weight_decay of optim.weight_decay or 0",
        ),
    ):
        if coupling != "none" and not is_there:
            raise UsageError(
                f"{key}={coupling} does not apply to {OPTIMIZER_KEY}={optim.optimizer}, whose"
                f" parameter groups do not have {what}",
                keys=(key, OPTIMIZER_KEY),
                remedy=[set_to(key, "none"), set_to(OPTIMIZER_KEY, *OPTIMIZERS)],
            )


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
