"""The optimisers. The learning rate of their parameter groups is set before each step."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW
from torch.optim import Optimizer as TorchOptimizer

from rampcli.config.choices import Optimizer
from rampcli.config.schema import OptimConfig
from rampcli.models.decoder import Decoder


def build_optimizers(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """The optimisers of `optim.optimizer`, each with its share of the parameters of this rank's parts."""
    return BUILDERS[optim.optimizer](parts, optim)


def build_adamw(parts: Sequence[nn.Module], optim: OptimConfig) -> list[TorchOptimizer]:
    """AdamW (arXiv 1711.05101) for everything."""
    return [_adamw((parameter for part in parts for parameter in part.parameters()), optim)]


def build_muon(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Muon for the matrices of the layers, and AdamW for embeddings, the output projection, norms and biases."""
    matrices = [parameter for part in parts for parameter in part.layers.parameters() if parameter.ndim == 2]
    chosen = set(matrices)
    rest = (parameter for part in parts for parameter in part.parameters() if parameter not in chosen)
    return [Muon(matrices, lr=optim.lr, weight_decay=optim.weight_decay, momentum=optim.muon_momentum), _adamw(rest, optim)]


BUILDERS: dict[Optimizer, Callable[[Sequence[Decoder], OptimConfig], list[TorchOptimizer]]] = {
    Optimizer.adamw: build_adamw,
    Optimizer.muon: build_muon,
}


def _adamw(parameters: Iterable[nn.Parameter], optim: OptimConfig) -> AdamW:
    """With weight decay on matrices and embeddings only."""
    parameters = list(parameters)
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)


class Muon(TorchOptimizer):
    """Muon for matrices that may be sharded: the same step on every mesh.

    The momentum is sharded like the weights. Orthogonalising needs the whole matrix, so each rank gathers it, takes torch's Muon for it,
    and keeps its part; the step has the size that AdamW's learning rate and weight decay are made for (arXiv 2502.16982, section 2.2).
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002, D102
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
                change = _orthogonal(weight.grad.lerp(momentum, group["momentum"]), lr=group["lr"])
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(change)


def _orthogonal(update: Tensor, *, lr: float) -> Tensor:
    """The step against an update: -lr times its orthogonalised matrix, scaled."""
    whole = update.full_tensor() if isinstance(update, DTensor) else update
    change = nn.Parameter(torch.zeros_like(whole))
    change.grad = whole
    torch.optim.Muon([change], lr=lr, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw").step()  # type: ignore[no-untyped-call]
    if isinstance(update, DTensor):
        return distribute_tensor(change.detach(), update.device_mesh, update.placements, src_data_rank=None)
    return change.detach()
