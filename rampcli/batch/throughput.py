"""Tokens per second of one GPU, and the time that samples take."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.batch.quantities import parse_count
from rampcli.errors import UsageError

EFFICIENCY_KEY = "rampup.efficiency"


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Tokens per second of one GPU, by the number of micro batches per rank and optimiser step.

    With more micro batches per step, a smaller share of the step is spent on exchanging gradients.
    Rates are interpolated linearly between points and constant before the first and after the last.

    Attributes:
        points: (micro batches per rank, tokens per second per GPU), ascending in the first.
        basis: where the figures come from, in words for the user.
    """

    points: tuple[tuple[int, float], ...]
    basis: str

    def tokens_per_s_per_gpu(self, micro_batches: int) -> float:
        """Returns the rate of one GPU if each rank takes `micro_batches` per step."""
        left = max(
            (point for point in self.points if point[0] <= micro_batches), default=self.points[0]
        )
        right = min(
            (point for point in self.points if point[0] >= micro_batches), default=self.points[-1]
        )
        if left[0] >= right[0]:
            return left[1]
        share = (micro_batches - left[0]) / (right[0] - left[0])
        return left[1] + share * (right[1] - left[1])

    def seconds(
        self, samples: int, *, sequence_length: int, world_size: int, micro_batches: int
    ) -> float:
        """Returns the seconds that samples take.

        Args:
            samples: number of samples.
            sequence_length: tokens per sample.
            world_size: number of GPUs.
            micro_batches: micro batches per rank and optimiser step.
        """
        return samples * sequence_length / (world_size * self.tokens_per_s_per_gpu(micro_batches))


def parse_points(text: str) -> tuple[tuple[int, float], ...]:
    """Returns the points of `rampup.efficiency="1:9000 4:11500"`.

    An entry is MICRO_BATCHES:TOKENS_PER_SECOND: micro batches per rank and step, and tokens per
    second per GPU.

    Raises:
        UsageError: an entry has another form, or two entries have the same number of micro batches.
    """
    points: dict[int, float] = {}
    for word in text.replace(",", " ").split():
        micro_batches, _, rate = word.partition(":")
        count, tokens_per_s = parse_count(micro_batches), _parse_positive(rate)
        if not count or tokens_per_s is None or count in points:
            raise UsageError(
                f"{EFFICIENCY_KEY}={text!r}: {word!r} is not MICRO_BATCHES:TOKENS_PER_SECOND,"
                " each number of micro batches once",
                keys=(EFFICIENCY_KEY,),
                remedy=f"{EFFICIENCY_KEY}='1:9000 4:11500 16:12000'",
            )
        points[count] = tokens_per_s
    if not points:
        raise UsageError(
            f"{EFFICIENCY_KEY} is empty",
            keys=(EFFICIENCY_KEY,),
            remedy=f"{EFFICIENCY_KEY}='1:9000 4:11500', or null",
        )
    return tuple(sorted(points.items()))


def to_text(points: Sequence[tuple[int, float]]) -> str:
    """Returns points as the text of `rampup.efficiency`."""
    return " ".join(f"{micro_batches}:{rate:.12g}" for micro_batches, rate in points)


def _parse_positive(text: str) -> float | None:
    count = parse_count(text)
    try:
        rate = float(text) if count is None else float(count)
    except ValueError:
        return None
    return rate if 0 < rate < float("inf") else None
