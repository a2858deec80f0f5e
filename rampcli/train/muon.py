"""The optimiser Muon."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from rampcli.parallel.mesh import layout_of, local_part
from rampcli.parallel.owners import Coordinates, Exchange, MatrixStack
from rampcli.settings.optimizers import stack_size


class Muon(Optimizer):
    """Muon for matrices, which may be sharded: its steps are the same on every mesh.

    A step has no effect if `found_inf`, an fp32 scalar on the device, is 1. Torch's fused
    optimisers skip steps in the same way.

    The momentum is sharded like the weights. Each matrix is orthogonalised by one of the ranks that
    hold it, in a stack of matrices of its shape. Steps have the size for which AdamW's learning
    rate and weight decay are chosen (arXiv 2502.16982, section 2.2).

    Attributes:
        exchanges: whether ranks bring matrices to each other. Without it, a step takes the same
            work, and its directions are wrong.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        iterations: int,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.iterations = iterations
        self.exchanges = True
        self._step_supports_amp_scaling = True
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002, D102
        for group in self.param_groups:
            by_layout = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    mesh, placements = layout_of(weight)
                    is_replicated = tuple(placement.is_replicate() for placement in placements)
                    by_layout[mesh, is_replicated].append(weight)
            for (mesh, _), weights in by_layout.items():
                places = product(*map(range, mesh.shape if mesh is not None else ()))
                for stacks in divide(weights, list(places)):
                    self._update(stacks, mesh, group)

    def _update(
        self,
        stacks: dict[Coordinates, Sequence[nn.Parameter]],
        mesh: DeviceMesh | None,
        group: dict[str, Any],
    ) -> None:
        """Takes a step with the weights that each rank orthogonalises at once."""
        exchange = Exchange(
            mesh,
            {
                owner: MatrixStack((len(weights), *weights[0].shape), layout_of(weights[0])[1])
                for owner, weights in stacks.items()
            },
            torch.bfloat16,
            is_on=self.exchanges,
        )
        shards = (
            (owner, torch.stack([self._nesterov(weight, group["momentum"]) for weight in weights]))
            for owner, weights in stacks.items()
        )
        directions = exchange.apply(partial(orthogonalise, iterations=self.iterations), shards)
        kept: Tensor | float = 1 - group["lr"] * group["weight_decay"]
        if self.found_inf is not None:
            kept = torch.where(self.found_inf > 0, 1.0, kept)
        for owner, weights in stacks.items():
            size = 0.2 * max(weights[0].shape) ** 0.5
            for weight, direction in zip(weights, directions[owner], strict=True):
                change = direction.to(weight.dtype)
                if self.found_inf is not None:
                    change *= 1 - self.found_inf
                local_part(weight).mul_(kept).add_(change, alpha=-group["lr"] * size)

    def _nesterov(self, weight: nn.Parameter, momentum: float) -> Tensor:
        """Returns this rank's shard of the gradient with Nesterov momentum, in bf16."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        assert weight.grad is not None
        gradient, buffer = local_part(weight.grad), local_part(state["momentum_buffer"])
        if self.found_inf is not None:  # the momentum, averaged with itself, stays the same
            gradient = gradient.where(self.found_inf == 0, buffer)
        buffer.lerp_(gradient, 1 - momentum)
        return gradient.lerp(buffer, momentum).bfloat16()


def orthogonalise(matrices: Tensor, *, iterations: int) -> Tensor:
    """Returns roughly the nearest orthogonal matrices.

    Newton-Schulz iterations with the coefficients of Keller Jordan's Muon, in bf16. Five bring most
    singular values to between about 0.7 and 1.2. Fewer leave small ones smaller.

    Args:
        matrices: [matrices, rows, columns].
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.bfloat16()
    result = result.mT if is_tall else result
    result = result / torch.linalg.matrix_norm(result, keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = result @ result.mT
        result = torch.baddbmm(
            result, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), result, beta=a
        )
    return result.mT if is_tall else result


def divide(
    weights: Iterable[nn.Parameter], owners: Sequence[Coordinates]
) -> list[dict[Coordinates, Sequence[nn.Parameter]]]:
    """Divides the work of orthogonalising weights evenly.

    Weights of one shape are dealt out, the largest shapes first, and each time the owner with the
    least work is the first to receive one.

    Returns:
        Rounds: a stack of weights of one shape for each owner that still has work.
    """
    alike = defaultdict(list)
    for weight in weights:
        alike[weight.shape, layout_of(weight)[1]].append(weight)
    work = dict.fromkeys(owners, 0)
    stacks: dict[Coordinates, list[Sequence[nn.Parameter]]] = {owner: [] for owner in owners}
    for (shape, _), same in sorted(alike.items(), key=lambda item: -_operations(item[0][0])):
        for index, owner in enumerate(sorted(owners, key=work.__getitem__)):
            share, at_once = same[index :: len(owners)], stack_size(shape.numel())
            stacks[owner] += [share[i : i + at_once] for i in range(0, len(share), at_once)]
            work[owner] += len(share) * _operations(shape)
    return [
        {owner: stack for owner, stack in zip(owners, one_of_each, strict=True) if stack}
        for one_of_each in zip_longest(*stacks.values())
    ]


def _operations(shape: torch.Size) -> int:
    """Returns a number to which the operations of an iteration are proportional."""
    return shape.numel() * min(shape)
