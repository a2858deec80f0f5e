"""Builds the optimisers. The loop sets the learning rate of their groups before each step."""

from collections.abc import Iterable, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW
from torch.optim import Optimizer as TorchOptimizer

from rampcli.config.extension_settings import extension_function
from rampcli.config.optimizers import OPTIMIZERS, stack_size
from rampcli.config.schema.optim import OptimConfig
from rampcli.extensions import OPTIMIZER
from rampcli.models.decoder import Decoder


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
        Muon(matrices, lr=optim.lr, weight_decay=optim.weight_decay, momentum=optim.muon_momentum),
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


class Muon(TorchOptimizer):
    """Muon for matrices, which may be sharded: its steps are the same on every mesh.

    A step has no effect if `found_inf`, an fp32 scalar on the device, is 1. Torch's fused
    optimisers skip steps in the same way.

    The momentum is sharded like the weights. Each rank gathers whole matrices to orthogonalise
    them, stacked by shape, and keeps its shard of the result. Steps have the size for which AdamW's
    learning rate and weight decay are chosen (arXiv 2502.16982, section 2.2).
    """

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._step_supports_amp_scaling = True
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002, D102
        for group in self.param_groups:
            for stack in _stacks([weight for weight in group["params"] if weight.grad is not None]):
                updates = [self._update(weight, group["momentum"]) for weight in stack]
                size = 0.2 * max(stack[0].shape) ** 0.5
                kept: Tensor | float = 1 - group["lr"] * group["weight_decay"]
                if self.found_inf is not None:
                    kept = torch.where(self.found_inf > 0, 1.0, kept)
                for weight, direction in zip(
                    stack, orthogonalise(torch.stack(updates)), strict=True
                ):
                    change = direction.to(weight.dtype)
                    if self.found_inf is not None:
                        change *= 1 - self.found_inf
                    weight.mul_(kept).add_(_shard_like(change, weight), alpha=-group["lr"] * size)

    def _update(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """Returns the whole gradient with Nesterov momentum in bf16."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        gradient, average = weight.grad, state["momentum_buffer"]
        assert gradient is not None
        if self.found_inf is not None:  # the momentum, averaged with itself, stays the same
            gradient = gradient.where(self.found_inf == 0, average)
        average.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(average, momentum).bfloat16()
        return update.full_tensor() if isinstance(update, DTensor) else update


def orthogonalise(matrices: Tensor) -> Tensor:
    """Returns roughly the nearest orthogonal matrices: singular values between about 0.7 and 1.2.

    Five Newton-Schulz iterations with the coefficients of Keller Jordan's Muon, in bf16.

    Args:
        matrices: [matrices, rows, columns].
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
    """Groups weights by shape, as many as Muon orthogonalises at once."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = {}
    for weight in weights:
        by_shape.setdefault(weight.shape, []).append(weight)
    stacks = []
    for shape, alike in by_shape.items():
        at_once = stack_size(shape.numel())
        stacks += [alike[first : first + at_once] for first in range(0, len(alike), at_once)]
    return stacks


def _shard_like(whole: Tensor, weight: Tensor) -> Tensor:
    """Returns this rank's shard of a tensor, if the weight is sharded, else the tensor."""
    if isinstance(weight, DTensor):
        return distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
    return whole
