"""Reads the averages of weights that a run has saved, and computes them anew."""

import torch
from torch import Tensor

from rampcli.batch.averages import EMA
from rampcli.checkpoint.load_weights import read_weights
from rampcli.checkpoint.state import MODEL, prefix_of
from rampcli.config import snapshot
from rampcli.models.decoder import build_decoder
from rampcli.models.initialize import initial_rows
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints


def model_of(run: RunDirectory) -> torch.nn.Module:
    """Returns the model of a run, without memory."""
    config = snapshot.read(run.config)
    return build_decoder(config.model, sequence_length=config.data.sequence_length)


def read(run: RunDirectory, checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """Returns the weights in a checkpoint, or averages of them, by name."""
    tensors = {name: torch.empty(one.shape) for name, one in model_of(run).named_parameters()}
    read_weights(checkpoint, tensors, prefix=prefix)
    return tensors


def newest_average(run: RunDirectory) -> dict[str, Tensor]:
    """Returns the moving average in a run's newest checkpoint."""
    return read(run, complete_checkpoints(run)[-1], prefix_of(EMA))


def initial_weights(run: RunDirectory) -> dict[str, Tensor]:
    """Returns the weights before the first step, float64."""
    model, seed = model_of(run), snapshot.read(run.config).seed
    return {
        name: initial_rows(model, name, 0, len(one), seed=seed).double()
        for name, one in model.named_parameters()
    }


def weights_at(run: RunDirectory, step: int) -> dict[str, Tensor]:
    """Returns the saved weights after a step, float64."""
    if step == 0:
        return initial_weights(run)
    (checkpoint,) = (each for each in complete_checkpoints(run) if each.step == step)
    return {name: one.double() for name, one in read(run, checkpoint, MODEL).items()}


def averaged(run: RunDirectory, *, since_step: int, half_life_tokens: int) -> dict[str, Tensor]:
    """Returns the moving average of a run in float64, from the weights saved after each step.

    Args:
        since_step: step with whose weights it begins.
    """
    config = snapshot.read(run.config)
    ends = {each.step: each.consumed_samples for each in complete_checkpoints(run)} | {0: 0}
    average = weights_at(run, since_step)
    for step in range(since_step + 1, max(ends) + 1):
        tokens = (ends[step] - ends[step - 1]) * config.data.sequence_length
        kept = 0.5 ** (tokens / half_life_tokens)
        for name, weight in weights_at(run, step).items():
            average[name] = kept * average[name] + (1 - kept) * weight
    return average
