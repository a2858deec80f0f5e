"""Averages of the weights over a run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rampcli.batch.averages import AverageRule
from rampcli.batch.quantities import counted
from rampcli.checkpoint.load import DAMAGE, read_mean
from rampcli.errors import DamagedFileError
from rampcli.models.decoder import Decoder
from rampcli.parallel.mesh import local_part
from rampcli.parallel.ranks import on_all_ranks
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints


class WeightAverage:
    """An average of this rank's weights, in fp32. It is sharded as they are, and begins as they do.

    Attributes:
        rule: how far it moves with each step; None if only calls of `move` move it.
        values: the average of each parameter.
    """

    def __init__(self, parts: Sequence[Decoder], rule: AverageRule | None = None) -> None:
        self.rule = rule
        self.values = {
            parameter: parameter.detach().float().clone()
            for part in parts
            for parameter in part.parameters()
        }

    def follow(self, begin: int, end: int) -> None:
        """Moves the average as its rule says after a step.

        Args:
            begin: tokens of the run before the step.
            end: tokens of the run after the step.
        """
        assert self.rule is not None
        share = self.rule.share(begin, end)
        if share > 0.0:
            self.move(share)

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Moves the average towards the weights by a share of the difference, in place.

        With a share of 1, what the average was does not matter: it may be memory without a value.
        Does not wait for the device.
        """
        averages, weights = zip(*self._shards(), strict=True)
        if share == 1.0:
            torch._foreach_copy_(averages, weights)
        else:
            torch._foreach_lerp_(averages, weights, share)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Exchanges the weights with their average for a block, in place and bit for bit.

        The tensors stay the same objects, so compiled layers and FSDP use the average. Only one
        more tensor is in memory at a time. Layers must not hold gathered weights.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for average, weight in self._shards():
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def _shards(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields this rank's shards that are not empty: of an average, and of its weight."""
        for parameter, average in self.values.items():
            if (weight := local_part(parameter)).numel():
                yield local_part(average), weight


def begun(averages: Mapping[str, WeightAverage], tokens: int) -> dict[str, WeightAverage]:
    """Returns the averages that have a value after some tokens of the run."""
    return {kind: one for kind, one in averages.items() if one.rule and one.rule.has_begun(tokens)}


def mean_with_checkpoints(
    parts: Sequence[Decoder], run: RunDirectory, *, step: int, checkpoints: int
) -> WeightAverage:
    """Returns the mean of the weights and of those in the checkpoints before them.

    It is the mean that `rampcli export --average last:N` writes once the weights are saved, too.
    Every rank calls this.

    Args:
        step: the step after which the weights are as they are.
        checkpoints: number of checkpoints in the mean, these weights included.

    Raises:
        RankError: there are fewer, or a rank cannot read one.
    """

    def find() -> list[Checkpoint]:
        before = [one for one in complete_checkpoints(run) if one.step < step]
        if len(before) < checkpoints - 1:
            kept = counted(len(before), "checkpoint")
            raise DamagedFileError(f"before step {step:,}, {run.path} has {kept}")
        return before[1 - checkpoints :]

    found = on_all_ranks(find, errors=DAMAGE)
    mean = WeightAverage(parts)
    values = {
        name: mean.values[parameter]
        for part in parts
        for name, parameter in part.named_parameters()
    }
    on_all_ranks(lambda: read_mean(found, values), errors=DAMAGE)
    mean.move(1 / checkpoints)
    return mean
