"""Reads the averages of weights that a run has saved, and computes them anew."""

from functools import cache

import torch
from torch import Tensor

from rampcli.checkpoint.load import read_weights
from rampcli.checkpoint.state import MODEL, prefix_of
from rampcli.config import snapshot
from rampcli.models.decoder import build_decoder
from rampcli.models.initialize import initial_rows
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints
from rampcli.runs.rows import read_rows


def model_of(run: RunDirectory) -> torch.nn.Module:
    """Returns the model of a run, without memory."""
    config = snapshot.read(run.config)
    return build_decoder(config.model, sequence_length=config.data.sequence_length)


def read(run: RunDirectory, checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    """Returns the weights in a checkpoint, or averages of them, by name."""
    tensors = {name: torch.empty(one.shape) for name, one in model_of(run).named_parameters()}
    read_weights(checkpoint, tensors, prefix=prefix)
    return tensors


def newest_average(run: RunDirectory, kind: str) -> dict[str, Tensor]:
    """Returns an average in a run's newest checkpoint.

    Args:
        kind: setting of the section `average`.
    """
    return read(run, complete_checkpoints(run)[-1], prefix_of(kind))


def initial_weights(run: RunDirectory) -> dict[str, Tensor]:
    """Returns the weights before the first step, float64."""
    model, seed = model_of(run), snapshot.read(run.config).seed
    return {
        name: initial_rows(model, name, 0, len(one), seed=seed).double()
        for name, one in model.named_parameters()
    }


@cache
def weights_at(run: RunDirectory, step: int) -> dict[str, Tensor]:
    """Returns the saved weights after a step, float64."""
    if step == 0:
        return initial_weights(run)
    (checkpoint,) = (each for each in complete_checkpoints(run) if each.step == step)
    return {name: one.double() for name, one in read(run, checkpoint, MODEL).items()}


def token_ends(run: RunDirectory) -> dict[int, int]:
    """Returns the tokens of a run after each step."""
    return {row["step"]: row["consumed_tokens"] for row in read_rows(run.metrics)} | {0: 0}


def averaged(run: RunDirectory, *, since_step: int, half_life_tokens: int) -> dict[str, Tensor]:
    """Returns the moving average of a run in float64, from the weights saved after each step.

    Args:
        since_step: step with whose weights it begins.
    """
    ends = token_ends(run)
    average = {**weights_at(run, since_step)}
    for step in range(since_step + 1, max(ends) + 1):
        kept = 0.5 ** ((ends[step] - ends[step - 1]) / half_life_tokens)
        for name, weight in weights_at(run, step).items():
            average[name] = kept * average[name] + (1 - kept) * weight
    return average


def merged(run: RunDirectory, *, first_token: int) -> dict[str, Tensor]:
    """Returns the mean of a run's weights after each step in float64, by tokens after a position.

    Args:
        first_token: tokens of the run before that position.
    """
    ends = token_ends(run)
    total: dict[str, Tensor] = {}
    for step in range(1, max(ends) + 1):
        tokens = max(0, ends[step] - max(first_token, ends[step - 1]))
        for name, weight in weights_at(run, step).items() if tokens else ():
            total[name] = total.get(name, 0) + tokens * weight
    return {name: weights / (max(ends.values()) - first_token) for name, weights in total.items()}


def assert_same_averages(
    run: RunDirectory, kind: str, expected: dict[str, Tensor], *, rtol: float, atol: float
) -> None:
    """Checks an average in a run's newest checkpoint.

    Args:
        kind: setting of the section `average`.
    """
    found = newest_average(run, kind)
    assert found.keys() == expected.keys()
    for name, average in found.items():
        torch.testing.assert_close(average.double(), expected[name].double(), rtol=rtol, atol=atol)
