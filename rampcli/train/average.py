"""Averages of the weights over a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from rampcli.models.decoder import Decoder
from rampcli.parallel.layout import local_part


class WeightAverage:
    """An average of this rank's weights, in fp32. It is sharded as they are, and begins as they do.

    Attributes:
        values: the average of each parameter.
    """

    def __init__(self, parts: Sequence[Decoder]) -> None:
        self.values = {
            parameter: parameter.detach().float().clone()
            for part in parts
            for parameter in part.parameters()
        }

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Moves the average towards the weights by a share of the difference, in place.

        Does not wait for the device.
        """
        averages, weights = zip(*self._shards(), strict=True)
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
