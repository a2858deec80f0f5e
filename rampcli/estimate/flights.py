"""What a pipeline rank holds at the fullest points of torch's schedules, without torch."""

from collections.abc import Iterator
from dataclasses import dataclass

SENDS_IN_FLIGHT = 2
"""Sends of a direction that a rank of the interleaved schedule does not wait for."""
RECEIVED_EARLY = 3
"""Inputs and gradients that a rank of the interleaved schedule has received, or is receiving, for
its next passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """A point in a rank's schedule.

    Attributes:
        passes: forward passes through a part of the model that wait for their backward pass.
        held: share of the parts that hold gradients of earlier micro batches, from 0 to 1.
        exchanged: outputs of these passes, and what the rank is sending and has received early.
            Each is as large as the hidden states.
    """

    passes: int
    held: float
    exchanged: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSchedule:
    """A rank's schedule: 1F1B or GPipe for one part of the model, else interleaved 1F1B.

    Attributes:
        parts: parts of the model on each rank.
    """

    ranks: int
    rank: int
    parts: int
    micro_batches: int

    def flights(self) -> Iterator[Flight]:
        """Yields the points where most passes are in flight, and where more gradients are held."""
        total, per_round = self.micro_batches * self.parts, self._micro_batches_per_round
        most = min(total, self._most_in_flight)
        # The last backward pass with most passes in flight, and the first one that finds gradients
        # in one more part.
        backwards = {total - most + 1, *(part * per_round + 2 for part in range(self.parts))}
        for backward in sorted(each for each in backwards if each <= total):
            passes = min(most, total - backward + 1)
            parts_with_gradients = min(self.parts, -(-(backward - 1) // per_round))
            yield Flight(
                passes=passes,
                held=parts_with_gradients / self.parts,
                exchanged=self._exchanged(passes),
            )

    @property
    def _micro_batches_per_round(self) -> int:
        """Micro batches that pass through one part before the next part has its turn."""
        if self.parts == 1:
            return 1
        return self.micro_batches // max(1, self.micro_batches // self.ranks)

    @property
    def _most_in_flight(self) -> int:
        later = self.ranks - 1 - self.rank
        if self.parts > 1:
            return (self.parts - 1) * self._micro_batches_per_round + 2 * later + 1
        # With fewer micro batches than ranks, all forward passes come first (GPipe).
        return self.micro_batches if self.micro_batches < self.ranks else later + 1

    def _exchanged(self, passes: int) -> float:
        """Returns the number of hidden states and gradients that passes in flight exchange."""
        preceding = self.parts - (self.rank == 0)
        following = self.parts - (self.rank == self.ranks - 1)
        outputs = passes * following / self.parts
        if self.parts > 1:
            return outputs + RECEIVED_EARLY + SENDS_IN_FLIGHT
        return outputs + following + preceding  # one gradient received, one sent
