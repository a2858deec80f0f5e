"""Tensor and sequence parallelism: splits layers by heads and width, and the loss by vocabulary.

Megatron-LM's scheme (arXiv 1909.08053, 2205.05198), built from torch's parallel styles. Between
layers each rank has its part of the sequence. Each class of layers declares how its submodules are
split (`tensor_plan`, see `rampcli.models.parts`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from rampcli.models.loss import ZLoss
from rampcli.parallel.mesh import local_part


def _gathered_input(module: nn.Module) -> ParallelStyle:
    """Returns a style that gathers the first input along the sequence and passes on the others."""
    others = (None,) * (len(signature(module.forward).parameters) - 1)
    return PrepareModuleInput(
        input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others)
    )


PARALLEL_STYLES: dict[str, Callable[[nn.Module], ParallelStyle]] = {
    "gathered_input": _gathered_input,
    "columns": lambda _: ColwiseParallel(),
    "rows": lambda _: RowwiseParallel(output_layouts=Shard(1)),
    "sequence": lambda _: SequenceParallel(),
    # A norm over head_size: its input [batch, sequence, heads, head_size] is split by heads.
    "heads": lambda _: SequenceParallel(sequence_dim=2, use_local_output=True),
    "token_embedding": lambda _: RowwiseParallel(
        input_layouts=Replicate(), output_layouts=Shard(1)
    ),
    "position_embedding": lambda _: ColwiseParallel(output_layouts=Shard(-2)),
    "logits": lambda _: ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}
"""How a module can be split, by the words of `tensor_plan`."""


def plan_of(model: nn.Module) -> dict[str, ParallelStyle]:
    """Returns the style of each submodule, by name, as the classes of the model declare it."""
    modules = dict(model.named_modules())
    plan = {}
    for parent, module in modules.items():
        declared: dict[str, str] = getattr(module, "tensor_plan", {})
        for child, style in declared.items():
            name = ".".join(part for part in (parent, child) if part)
            if name in modules:
                plan[name] = PARALLEL_STYLES[style](modules[name])
    return plan


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Splits a decoder over the tensor axis, in place. Its logits are sharded by vocabulary."""
    if mesh.size() == 1:
        return
    parallelize_module(model, mesh, plan_of(model))
    model.loss = summed_loss_of_shards  # type: ignore[assignment]  # a function, not a module


def summed_loss_of_shards(
    hidden: Tensor, output: nn.Module, labels: Tensor, *, z_loss: ZLoss | None = None
) -> Tensor:
    """Computes `rampcli.models.loss.summed_loss` from logits that are sharded by vocabulary.

    Each rank holds the logits of its vocabulary shard for all tokens at once.
    """
    logits, labels = output(hidden).flatten(0, 1).float(), labels.flatten()
    log_probs, is_counted = logits.log_softmax(dim=1), labels >= 0
    gradient_only = None
    if z_loss is not None and torch.is_grad_enabled():
        # Before the loss, so that its backward pass comes after the one of the loss, which needs
        # more memory.
        gradient_only = ZLossOfShards.apply(
            local_part(logits), local_part(log_probs.detach()), is_counted, z_loss
        )  # type: ignore[no-untyped-call]
    loss = _whole(
        F.nll_loss(log_probs, labels.where(is_counted, -100), ignore_index=-100, reduction="sum")
    )
    return loss if gradient_only is None else loss + gradient_only


class ZLossOfShards(torch.autograd.Function):
    """Maps this rank's logits and their log-probabilities, [tokens, vocabulary / ranks], to 0.

    The gradient of this 0 is the one of the weighted z-loss. Ranks need not exchange anything.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, logits: Tensor, log_probs: Tensor, is_counted: Tensor, z_loss: ZLoss
    ) -> Tensor:
        # Every logit exceeds its log-probability by log(Z). The largest is rounded least.
        log_z = logits.amax(dim=1) - log_probs.amax(dim=1)
        ctx.save_for_backward(log_probs, z_loss.add(log_z, is_counted))
        return logits.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: D102
        (scale,) = gradients
        log_probs, of_log_z = ctx.saved_tensors
        return log_probs.exp().mul_((scale * of_log_z)[:, None]), None, None, None


def token_log_probs_of_shards(
    hidden: Tensor, output: nn.Module, labels: Tensor, *, temperature: float
) -> Tensor:
    """Computes `rampcli.models.loss.token_log_probs` from logits sharded by vocabulary.

    Each rank holds the logits of its vocabulary shard for all tokens at once, and returns the
    whole result. The call and its backward pass must run in the context of `loss_over`.
    """
    logits, wanted = output(hidden).flatten(0, 1).float(), labels.flatten()
    log_probs = (logits / temperature).log_softmax(dim=1)
    of_labels = -F.nll_loss(
        log_probs, wanted.where(wanted >= 0, -100), ignore_index=-100, reduction="none"
    )
    with torch.no_grad():
        entropies = -(log_probs.exp() * log_probs).sum(dim=1)
    found = torch.stack([_whole(of_labels), _whole(entropies) * (wanted >= 0)])
    return found.view(2, *labels.shape)


def loss_over(mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Returns the context in which a sharded loss and its backward pass must run."""
    return loss_parallel() if mesh.size() > 1 else nullcontext()


def _whole(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor()
