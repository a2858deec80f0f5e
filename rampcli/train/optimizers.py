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

STACKED = 2**22
"""Numbers that are orthogonalised together, if a matrix has no more."""


def build_optimizers(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """The optimisers of `optim.optimizer`, each with its share of the parameters of this rank's parts."""
    return BUILDERS[optim.optimizer](parts, optim)


def build_adamw(parts: Sequence[nn.Module], optim: OptimConfig) -> list[TorchOptimizer]:
    """AdamW (arXiv 1711.05101) for everything."""
    return [_adamw((parameter for part in parts for parameter in part.parameters()), optim)]


def build_muon(parts: Sequence[Decoder], optim: OptimConfig) -> list[TorchOptimizer]:
    """Muon for the matrices of the layers, and AdamW for embeddings, the output projection, norms and biases."""
    matrices = [
        parameter for part in parts for parameter in part.layers.parameters() if parameter.ndim == 2
    ]
    chosen = set(matrices)
    rest = (
        parameter for part in parts for parameter in part.parameters() if parameter not in chosen
    )
    return [
        Muon(matrices, lr=optim.lr, weight_decay=optim.weight_decay, momentum=optim.muon_momentum),
        _adamw(rest, optim),
    ]


BUILDERS: dict[Optimizer, Callable[[Sequence[Decoder], OptimConfig], list[TorchOptimizer]]] = {
    Optimizer.adamw: build_adamw,
    Optimizer.muon: build_muon,
}


def _adamw(parameters: Iterable[nn.Parameter], optim: OptimConfig) -> AdamW:
    """With weight decay on matrices and embeddings only."""
    parameters = list(parameters)
    groups = [
        {
            "params": [parameter for parameter in parameters if parameter.ndim >= 2],
            "weight_decay": optim.weight_decay,
        },
        {
            "params": [parameter for parameter in parameters if parameter.ndim < 2],
            "weight_decay": 0.0,
        },
    ]
    return AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps, fused=True)


class Muon(TorchOptimizer):
    """Muon for matrices that may be sharded: the same step on every mesh.

    The momentum is sharded like the weights. Orthogonalising needs the whole matrix, so each rank gathers it, orthogonalises it and keeps
    its part; matrices of one shape go together. The step has the size that AdamW's learning rate and weight decay are made for
    (arXiv 2502.16982, section 2.2).
    """

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002, D102
        for group in self.param_groups:
            for stack in _stacks([weight for weight in group["params"] if weight.grad is not None]):
                updates = [_whole(self._update(weight, group["momentum"])) for weight in stack]
                size = 0.2 * max(stack[0].shape) ** 0.5
                for weight, direction in zip(
                    stack, orthogonalised(torch.stack(updates)), strict=True
                ):
                    change = direction.to(weight.dtype)
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(
                        _part_of(change, weight), alpha=-group["lr"] * size
                    )

    def _update(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """The gradient with Nesterov's momentum, sharded like the weight."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        assert weight.grad is not None
        average: Tensor = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(average, momentum).bfloat16()


def orthogonalised(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values come out between about 0.7 and 1.2; bf16 [matrices, rows, columns].

    Five steps of the Newton-Schulz iteration of Keller Jordan's Muon, in bf16.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.bfloat16()
    result = result.mT if is_tall else result
    result = result / torch.linalg.matrix_norm(result, keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = result @ result.mT
        result = torch.baddbmm(
            result, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), result, beta=a
        )
    return result.mT if is_tall else result


def _stacks(weights: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Weights of one shape together, as many as are no more than `STACKED` numbers, one at least; whole ones are held at once."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for weight in weights:
        by_shape.setdefault(weight.shape, []).append(weight)
    stacks = []
    for shape, alike in by_shape.items():
        at_once = max(1, STACKED // shape.numel())
        stacks += [alike[first : first + at_once] for first in range(0, len(alike), at_once)]
    return stacks


def _whole(update: Tensor) -> Tensor:
    return update.full_tensor() if isinstance(update, DTensor) else update


def _part_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part, if the other is sharded."""
    if isinstance(like, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole
