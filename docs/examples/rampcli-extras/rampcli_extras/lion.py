"""Lion for torch."""

from collections.abc import Iterable
from typing import Any

import torch


class LionOptimizer(torch.optim.Optimizer):
    """Steps of the sign of the momentum (arXiv 2302.06675, algorithm 2)."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Changes each parameter by its learning rate."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"]
                direction = momentum.lerp(weight.grad, 1 - beta1).sign()
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(direction, alpha=-group["lr"])
                momentum.lerp_(weight.grad, 1 - beta2)
