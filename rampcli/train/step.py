"""The parts of a training step, and validation."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rampcli.batch.noise_scale import Noise, noise_of
from rampcli.batch.training_plan import StagePlan
from rampcli.data.loader import Batch, MicroBatch
from rampcli.machine.activity import READING_VALIDATION, VALIDATING, begin, waiting
from rampcli.models.decoder import Decoder
from rampcli.parallel.mesh import is_first_copy, local_part
from rampcli.train.group_norms import GroupNorms
from rampcli.train.passes import Passes

MOST_LOSS_GROUPS = 32
"""Groups of samples at most whose losses a validation tells apart. Passes go to them in turn."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and gradient of a global batch, before the weights change.

    Attributes:
        loss: mean loss in nats per valid token.
        grad_norm: norm of its gradient before clipping.
        z_loss: mean z-loss per valid token, without its weight, if it is part of the gradient.
        groups: `groups_sq` and `shares_sq` of `noise_of`, if the step measures them.
        measured: sums over all ranks of what observers have measured.
    """

    loss: float
    grad_norm: float
    z_loss: float | None = None
    groups: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()

    def noise(self, *, sequences: int) -> Noise | None:
        """Returns what the step says about the noise of the gradient, if it measures that.

        Args:
            sequences: sequences of the step.
        """
        if not self.groups:
            return None
        groups_sq, shares_sq = self.groups
        return noise_of(
            whole_sq=self.grad_norm**2,
            groups_sq=groups_sq,
            shares_sq=shares_sq,
            sequences=sequences,
        )


class Limits(NamedTuple):
    """Largest loss and gradient norm with which a step may change the weights."""

    loss: float = math.inf
    grad_norm: float = math.inf


class DeviceResult:
    """A `StepResult` that the device may still compute, on its way to the host.

    Args:
        numbers: loss, gradient norm, z-loss, groups and measured numbers, float64 on the device.
        has_z_loss: whether there is a z-loss among them.
        groups: how many of them are numbers of groups.
    """

    def __init__(self, numbers: Tensor, *, has_z_loss: bool = False, groups: int = 0) -> None:
        self.loss, self.grad_norm = numbers[0], numbers[1]
        self.has_z_loss = has_z_loss
        self.groups = groups
        self._arrived: torch.cuda.Event | None = None
        if numbers.is_cuda:  # Only a copy to pinned memory lets the host continue.
            pinned = torch.empty_like(numbers, device="cpu", pin_memory=True)
            numbers = pinned.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.current_stream().record_event()
        self._numbers = numbers

    def is_harmful(self, limits: Limits) -> Tensor | bool:
        """Returns whether the step must not change the weights.

        It must not if a number is above its limit or not finite. The host does not know the numbers
        of a GPU yet, so the result is a bool scalar there. On a CPU, it is a bool.
        """
        # Also False for NaN.
        is_fine = (self.loss <= limits.loss) & (self.grad_norm <= limits.grad_norm)
        harmful = ~(is_fine & self.loss.isfinite() & self.grad_norm.isfinite())
        return harmful if harmful.is_cuda else bool(harmful)

    def wait(self) -> StepResult:
        """Waits until the numbers have arrived on the host, and returns them."""
        if self._arrived is not None:
            with waiting:
                self._arrived.synchronize()
        loss, grad_norm, *others = self._numbers.tolist()
        z_loss = others.pop(0) if self.has_z_loss else None
        groups, measured = others[: self.groups], others[self.groups :]
        return StepResult(loss, grad_norm, z_loss, tuple(groups), tuple(measured))


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenStep:
    """A training step that has been taken.

    Attributes:
        batch: this rank's share of its global batch.
        skipped: why it changed neither weights nor optimiser state, or None if it did. If a step
            has several updates, this names those that were skipped.
        step_time_s: seconds that it took, reading included.
        tokens: tokens that it trained on, or None if every sample has `data.sequence_length`.
        noise: what it says about the noise of the gradient, if it was measured.
        columns: further columns of its row in metrics.jsonl.
    """

    stage: StagePlan
    batch: Batch
    result: StepResult
    lr: float
    skipped: str | None
    step_time_s: float
    tokens: int | None = None
    noise: Noise | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """A validation on one corpus.

    Attributes:
        loss: mean loss in nats per valid token.
        validation_s: seconds that it took, reading included.
        corpus: name of the corpus in `data.validation`, or None if it has no name.
        bits_per_byte: bits per byte of the text that the valid tokens stand for. None if the loss
            is not finite, or if it is unknown how many bytes a token stands for.
        groups: sum of the losses and number of the valid tokens in each of at most
            `MOST_LOSS_GROUPS` groups of samples.
        of_averages: mean loss of each average of the weights, by its setting in `average`.
    """

    loss: float
    samples: int
    validation_s: float
    corpus: str | None = None
    bits_per_byte: float | None = None
    groups: Sequence[tuple[float, float]] = ()
    of_averages: Mapping[str, float] = field(default_factory=dict)


def accumulate_gradient(
    passes: Passes,
    micro_batches: Sequence[MicroBatch],
    *,
    global_tokens: int,
    gradient_clip_val: float | None,
    between: Callable[[], None] = lambda: None,
    norms: GroupNorms | None = None,
    measure: Callable[[], Sequence[Tensor]] = list,
) -> DeviceResult:
    """Runs forward and backward over the micro batches, then clips. Gradients are left in `.grad`.

    The gradient is the one of the mean loss over all valid tokens of the global batch, and of the
    weighted mean z-loss if there is one. A GPU may still compute it when this returns.

    Args:
        micro_batches: this rank's share of the global batch.
        global_tokens: valid tokens of the global batch, over all ranks.
        gradient_clip_val: as of `scale_gradients`.
        between: called between micro batches, but not in a pipeline. An exception that it raises
            ends the step, which then has no effect.
        norms: measures the norms of the micro batches' gradients.
        measure: returns this rank's addends to other numbers, once the gradient is there.
    """
    ranks = passes.meshes.gradient_ranks
    with norms.measuring(micro_batches) if norms else nullcontext(micro_batches) as groups:
        # Ranks hold different token counts, so the mean is over the whole batch. Gradients are
        # averaged over the ranks.
        loss = passes.forward_backward(groups, scale=ranks / max(1, global_tokens), between=between)
        squares_of_groups = norms.addends(groups, global_tokens=global_tokens) if norms else []
    norm = squared_norm(passes.parts, device=passes.device)
    z_loss = [] if passes.z_loss is None else [passes.z_loss.sum * passes.returns_loss]
    addends = [loss.double() / ranks, norm, *z_loss, *squares_of_groups, *measure()]
    totals = passes.total(torch.stack(addends))
    totals[1].sqrt_()
    if z_loss:
        totals[2].div_(max(1, global_tokens))
    result = DeviceResult(totals, has_z_loss=bool(z_loss), groups=len(squares_of_groups))
    scale_gradients(passes.parts, grad_norm=result.grad_norm, gradient_clip_val=gradient_clip_val)
    return result


def scale_gradients(
    parts: Sequence[Decoder],
    *,
    grad_norm: Tensor,
    gradient_clip_val: float | None,
    denominator: float = 1.0,
) -> None:
    """Divides the gradients by a denominator and clips their norm, in place.

    Args:
        grad_norm: norm of the divided gradient before clipping, a float64 scalar on the device.
        gradient_clip_val: largest norm of the gradient. None disables clipping.
    """
    if gradient_clip_val is None and denominator == 1.0:
        return
    factor = torch.ones_like(grad_norm)
    if gradient_clip_val is not None:
        # Not clip / norm: torch would multiply by the reciprocal, which rounds twice.
        clipped = torch.full_like(grad_norm, gradient_clip_val) / grad_norm
        factor = factor.where(~(grad_norm > gradient_clip_val), clipped)
    scale = (factor / denominator).float()
    # A GPU multiplies by 1, too: the host does not know the norm.
    if scale.is_cuda or scale != 1.0:
        torch._foreach_mul_(local_gradients(parts, copies=True), scale)


def update_weights(
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    lr: float,
    beta2: float | None = None,
    weight_decay: float | None = None,
    skip: Tensor | bool = False,
) -> None:
    """Takes an optimiser step with the accumulated gradients, or skips it, and drops them.

    Args:
        lr: learning rate of all groups.
        beta2: second decay rate of groups with `betas`. None leaves it as it is.
        weight_decay: of groups that have one above 0. None leaves it as it is.
        skip: whether to skip it, known to the host or a bool scalar on the device. Optimisers with
            `skips_on_device` let the device decide. The host waits for the device before others.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
            if beta2 is not None and "betas" in group:
                group["betas"] = (group["betas"][0], beta2)
            if weight_decay is not None and group.get("weight_decay"):
                group["weight_decay"] = weight_decay
        if skips_on_device(optimizer):
            # A skipped step, too, makes the state that a checkpoint has to hold.
            device = optimizer.param_groups[0]["params"][0].device
            optimizer.found_inf = (  # type: ignore[attr-defined]
                None if skip is False else torch.as_tensor(skip, dtype=torch.float32, device=device)
            )
            optimizer.step()
        elif not skip:
            optimizer.step()
        optimizer.zero_grad()


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimiser reads `found_inf`, as `torch.amp.GradScaler` would set it.

    Torch's fused optimisers do. A step has no effect if `found_inf` is 1.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def squared_norm(parts: Sequence[Decoder], *, device: torch.device) -> Tensor:
    """Returns this rank's addend to the squared norm of the gradient, a float64 scalar.

    Numbers that several ranks hold are counted by one of them.
    """
    return sum_of_squares(local_gradients(parts, copies=False), device=device)


def sum_of_squares(tensors: list[Tensor], *, device: torch.device) -> Tensor:
    """Returns the sum of the squares of all numbers in some tensors, a float64 scalar."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    if tensors:
        total += torch.stack(torch._foreach_norm(tensors)).double().square().sum()
    return total


@torch.no_grad()
def validate(
    passes: Passes,
    micro_batches: Iterable[MicroBatch],
    *,
    samples: int,
    corpus: str | None = None,
    bytes_of_tokens: Tensor | None = None,
    between: Callable[[], None] = lambda: None,
) -> Validation:
    """Computes the mean loss over the micro batches of all ranks. Every rank calls this.

    Args:
        micro_batches: this rank's share of the samples. They may be read while others are computed.
        bytes_of_tokens: bytes of text that each token stands for, int32 [vocabulary], if known.
        between: called between passes. An exception that it raises ends the validation.
    """
    began = time.perf_counter()
    totals = torch.zeros(3, dtype=torch.float64, device=passes.device)
    by_group: list[Tensor] = []
    remaining = iter(micro_batches)
    begin(READING_VALIDATION)
    for turn in count():
        if not (chunk := list(islice(remaining, passes.forward_micro_batches))):
            break
        begin(VALIDATING)
        of_chunk = passes.forward(chunk, bytes_of_tokens)
        totals += of_chunk
        if turn < MOST_LOSS_GROUPS:
            by_group.append(torch.zeros_like(totals))
        by_group[turn % MOST_LOSS_GROUPS] += of_chunk
        between()
        begin(READING_VALIDATION)
    begin(VALIDATING)
    sums = passes.sum_over_ranks(torch.cat([totals, *by_group]))
    total_loss, tokens, text_bytes, *of_groups = sums
    has_bits = text_bytes > 0 and math.isfinite(total_loss)
    return Validation(
        loss=total_loss / tokens if tokens else math.nan,
        samples=samples,
        validation_s=time.perf_counter() - began,
        corpus=corpus,
        bits_per_byte=total_loss / math.log(2) / text_bytes if has_bits else None,
        groups=[*zip(of_groups[0::3], of_groups[1::3], strict=True)],
    )


def local_gradients(parts: Sequence[Decoder], *, copies: bool) -> list[Tensor]:
    """Returns this rank's shards of the gradients.

    Without `copies`, leaves out shards and tied weights that another rank counts.
    """
    gradients = []
    for part in parts:
        parameters = part.parameters() if copies else part.stage_parameters().values()
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and (copies or is_first_copy(parameter)):
                gradients.append(local_part(gradient))
    return gradients
