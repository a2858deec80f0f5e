"""Forward and backward passes on pairs of prompt and response, and the gradient of an update."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rampcli.data.corpus import IGNORED, PADDING
from rampcli.data.loader import MicroBatch
from rampcli.machine.activity import waiting
from rampcli.models.decoder import Decoder
from rampcli.models.loss import token_log_probs
from rampcli.parallel.mesh import TENSOR, Meshes
from rampcli.parallel.tensor import token_log_probs_of_shards
from rampcli.rl.generator import Rollout
from rampcli.rl.objective import Objective, PolicyBatch, PolicySums
from rampcli.settings.config import Config
from rampcli.train.observers.model_observer import Measurement
from rampcli.train.passes import Passes
from rampcli.train.step import StepResult, scale_gradients, squared_norm


class PolicyPasses(Passes):
    """Passes whose loss is the one of policy gradients.

    Args:
        reference: model with the starting weights, for the KL divergence; None without it.

    Attributes:
        sums: `PolicySums` of this rank's passes since they were last set to 0.
    """

    def __init__(
        self,
        config: Config,
        parts: Sequence[Decoder],
        meshes: Meshes,
        device: torch.device,
        *,
        objective: Objective,
        reference: Decoder | None,
    ) -> None:
        super().__init__(config, parts, meshes, device)
        self.objective = objective
        self.reference = reference
        of_labels = token_log_probs if meshes.size(TENSOR) == 1 else token_log_probs_of_shards
        for model in (*parts, *([] if reference is None else [reference])):
            model.loss = partial(of_labels, temperature=config.rl.temperature)
        self.sums = torch.zeros(len(PolicySums._fields), dtype=torch.float64, device=device)

    def loss_of(self, micro_batch: MicroBatch) -> Tensor:
        """Returns the summed loss of some pairs, a scalar, and adds to `sums`."""
        assert isinstance(micro_batch, PolicyBatch)
        (model,) = self.parts
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = self.reference(micro_batch.tokens, labels=micro_batch.labels)[0]
        log_probs, entropy = model(micro_batch.tokens, labels=micro_batch.labels)
        batch = replace(micro_batch, reference_log_probs=reference)
        loss, sums = self.objective(log_probs, entropy, batch)
        if self.returns_loss:
            self.sums += sums
        return loss


def accumulate_policy_gradient(
    passes: PolicyPasses,
    batches: Iterable[PolicyBatch],
    *,
    count: int,
    gradient_clip_val: float | None,
    between: Callable[[], None] = lambda: None,
    measurement: Measurement | None = None,
) -> tuple[StepResult, PolicySums]:
    """Runs forward and backward over an update's pairs, then clips. Gradients are left in `.grad`.

    Returns loss and gradient norm, and the `PolicySums` of all ranks. Waits for the device once.

    The sum over all pairs is divided by the counts of all ranks at the end, so that neither micro
    batches nor ranks change the gradient.

    Args:
        batches: this rank's pairs, one batch for each pass. They may arrive while earlier ones are
            trained on.
        gradient_clip_val: as of `scale_gradients`.
        between: called between passes. An exception that it raises ends the step, which then has
            no effect.
        measurement: what observers measure on the gradient.
    """
    passes.sums.zero_()
    ranks = passes.meshes.gradient_ranks
    # Gradients are averaged over the ranks.
    loss = passes.forward_backward(batches, count=count, scale=ranks, between=between)
    norm = squared_norm(passes.parts, device=passes.device)
    totals = passes.total(torch.stack([loss.double() / ranks, norm, *passes.sums]))
    with waiting:
        summed_loss, squares, *counts = totals.tolist()
    sums = PolicySums(*counts)
    denominator = passes.objective.denominator(pairs=round(sums.pairs), tokens=round(sums.tokens))
    measured = measurement.addends(passes, denominator=denominator) if measurement else []
    measured_totals = passes.total(torch.stack(measured)).tolist() if measured else ()
    scale_gradients(
        passes.parts,
        grad_norm=totals[1].sqrt() / denominator,
        gradient_clip_val=gradient_clip_val,
        denominator=denominator,
    )
    grad_norm = math.sqrt(squares) / denominator
    loss_of_all = summed_loss / denominator
    return StepResult(loss_of_all, grad_norm, measured=tuple(measured_totals)), sums


def batch_of(
    rollout: Rollout,
    advantages: Tensor,
    pairs: slice,
    *,
    is_first_update: bool,
    multiple: int,
) -> PolicyBatch:
    """Returns some pairs of a rollout as a batch of one pass.

    Args:
        advantages: of all its pairs, fp32 [pairs].
        is_first_update: the policy is still the one that generated.
        multiple: the length of the sequences is a multiple of this.
    """
    responses, generations = rollout.responses, rollout.rewards.shape[1]
    device = responses.tokens.device
    numbers = range(len(responses.tokens))[pairs]
    prompts = [rollout.prompts[number // generations] for number in numbers]
    lengths = responses.lengths[pairs, None]
    starts = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    width = int((starts + lengths).max()) - 1  # the last token of a response is a label only
    places = torch.arange(-(-width // multiple) * multiple, device=device)
    padded = np.full((len(prompts), len(places)), PADDING)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    # Token and label at each place, counted from the start of the response.
    token, label = places - starts, places + 1 - starts
    is_label = (label >= 0) & (label < lengths)
    last = responses.tokens.shape[1] - 1

    def at(values: Tensor, index: Tensor) -> Tensor:
        return values[pairs].gather(1, index.clamp(0, last))

    tokens = torch.from_numpy(padded).to(device)
    is_response = (token >= 0) & (token < lengths)
    return PolicyBatch(
        tokens=torch.where(is_response, at(responses.tokens, token), tokens),
        labels=torch.where(is_label, at(responses.tokens, label), IGNORED),
        advantages=advantages[pairs].to(device),
        old_log_probs=torch.where(is_label, at(responses.log_probs, label), 0.0),
        is_first_update=is_first_update,
    )
