"""Tokens per second of one GPU, and the time that stages and restarts take."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate

from rampcli.batch.nodes import Fleet
from rampcli.batch.pipeline import bubble
from rampcli.batch.plan import MICRO_KEY
from rampcli.batch.quantities import listed, parse_count
from rampcli.errors import UsageError, set_to

EFFICIENCY_KEY = "rampup.efficiency"
RESTART_KEY = "rampup.restart_s"
CURVE, SURFACE = "1:9000 4:11500", "1x1:9000 1x4:11500 8x1:14000"
"""Examples of the two forms of `rampup.efficiency`."""

Size = tuple[int, int]
"""Samples per micro batch, and micro batches per rank and step."""
MOST_SURFACE_POINTS = 256
"""Most points of a surface. They are completed to a grid, whose size may be their square."""


class Basis(StrEnum):
    """What the throughput of a size rests on."""

    DECLARED = "declared"
    """A setting that holds for all sizes."""
    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    """Measurements of smaller and of larger sizes."""
    UNKNOWN = "unknown"
    """Nothing: the size is beyond the measured ones."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Tokens per second of one GPU, by micro batch size and micro batches per rank and step.

    A step takes the time to exchange the gradients, and for each micro batch a time that is about
    linear in its samples. So the time per token is linear in 1 / micro batch size and in
    1 / micro batches per step, and rates are interpolated like that. They are exact at the points.
    Beyond the outermost ones they are unknown, see `basis_of`; where something has to be assumed,
    it is the rate of the nearest size. If no point is slower than one with smaller sizes, then no
    rate is.

    Attributes:
        points: tokens per second per GPU.
        basis: where the figures come from, in words for the user.
        has_bubble: the figures include the time that a GPU waits for the others of its pipeline.
        any_size: the figures hold for every micro batch size.
        any_count: the figures hold for every number of micro batches per rank and step.
    """

    points: Mapping[Size, float]
    basis: str
    has_bubble: bool = True
    any_size: bool = False
    any_count: bool = False

    @classmethod
    def constant(
        cls, tokens_per_s_per_gpu: float, *, basis: str, has_bubble: bool = True
    ) -> "Throughput":
        """Returns the same rate for all sizes."""
        return cls(
            points={(1, 1): tokens_per_s_per_gpu},
            basis=basis,
            has_bubble=has_bubble,
            any_size=True,
            any_count=True,
        )

    def basis_of(self, micro_batches: int, *, micro_batch_size: int) -> Basis:
        """Returns what a rate rests on. The arguments are those of `tokens_per_s_per_gpu`."""
        if self.any_size and self.any_count:
            return Basis.DECLARED
        size = self._sizes[0] if self.any_size else micro_batch_size
        if (size, micro_batches) in self.points:
            return Basis.MEASURED
        is_between = (
            self._sizes[0] <= size <= self._sizes[-1]
            and self._counts[0] <= micro_batches <= self._counts[-1]
        )
        return Basis.INTERPOLATED if is_between else Basis.UNKNOWN

    def tokens_per_s_per_gpu(self, micro_batches: int, *, micro_batch_size: int) -> float:
        """Returns the rate of one GPU, or that of the nearest size if it is unknown.

        Args:
            micro_batches: micro batches per rank and optimiser step.
            micro_batch_size: samples per micro batch.
        """
        rows = _neighbours(self._sizes, micro_batch_size)
        columns = _neighbours(self._counts, micro_batches)
        return _mean_rate(
            (share * other, self._rates[row][column])
            for row, share in rows
            for column, other in columns
        )

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted({size for size, _ in self.points})

    @cached_property
    def _counts(self) -> list[int]:
        return sorted({count for _, count in self.points})

    @cached_property
    def _rates(self) -> list[list[float]]:
        """The rate of each of `_sizes` (rows) at each of `_counts` (columns)."""
        curves: dict[int, dict[int, float]] = {size: {} for size in self._sizes}
        for (size, count), rate in sorted(self.points.items()):
            curves[size][count] = rate
        exchange_s = {
            size: _exchange_s(size, curve) for size, curve in curves.items() if len(curve) > 1
        }
        rates = []
        for size, curve in curves.items():
            # The exchange takes as long for every micro batch size: the gradients are the same.
            nearest = min(exchange_s, key=lambda other: abs(other - size), default=None)
            cost_s = 0.0 if nearest is None else exchange_s[nearest]
            rates.append([_extend(size, count, curve, cost_s) for count in self._counts])
        return self._without_falls(rates)

    def _without_falls(self, rates: list[list[float]]) -> list[list[float]]:
        """Returns rates that do not fall as sizes grow, if the points do not fall either.

        If it does not, returns the rates unchanged.
        """
        infinity = float("inf")
        measured = [
            [self.points.get((size, count), infinity) for count in self._counts]
            for size in self._sizes
        ]
        least_above = _reverse(_cumulate(_reverse(measured), min))
        rising = _cumulate(
            [list(map(min, *rows)) for rows in zip(rates, least_above, strict=True)], max
        )
        holds = all(
            point in (infinity, rate)
            for rows in zip(measured, rising, strict=True)
            for point, rate in zip(*rows, strict=True)
        )
        return rising if holds else rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """The work of a stage: its batch size and its samples, or None if it has no end."""

    global_batch_size: int
    samples: int | None


def restarts_at(before: int, after: int, *, always: bool) -> bool:
    """Returns whether processes restart where one stage ends and the next begins.

    Args:
        before: nodes, or processes, of the stage that ends.
        after: the same of the stage that begins.
        always: processes restart at every boundary (`rampup.at_boundary=restart`).
    """
    return always or before != after


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How long stages and restarts take.

    Attributes:
        throughput: of one GPU.
        sequence_length: tokens per sample.
        restart_s: seconds from a stage's last step to the first step of the next processes.
        restarts_always: restart at every boundary, not only if the number of nodes changes.
    """

    throughput: Throughput
    sequence_length: int
    restart_s: float
    restarts_always: bool

    def stage_s(self, work: Work, nodes: int, *, micro_batch_size: int, fleet: Fleet) -> float:
        """Returns the seconds of a stage, or of one sample if the stage has no end.

        They contain the bubble of a pipeline.
        """
        world_size = nodes * fleet.devices
        data_parallel_size = world_size // fleet.parallel.model_parallel_size
        micro_batches = work.global_batch_size // (micro_batch_size * data_parallel_size)
        rate = self.throughput.tokens_per_s_per_gpu(
            micro_batches, micro_batch_size=micro_batch_size
        )
        samples = 1 if work.samples is None else work.samples
        seconds = samples * self.sequence_length / (world_size * rate)
        if self.throughput.has_bubble:
            return seconds
        return seconds / (1 - bubble(fleet.parallel, accumulate_grad_batches=micro_batches))


def _neighbours(axis: Sequence[int], value: int) -> list[tuple[int, float]]:
    """Returns indices of the values on an axis around `value`, with weights linear in 1 / value."""
    value = min(max(value, axis[0]), axis[-1])
    index = bisect_left(axis, value)
    if axis[index] == value:
        return [(index, 1.0)]
    left, right = axis[index - 1], axis[index]
    share = left * (right - value) / (value * (right - left))
    return [(index - 1, share), (index, 1 - share)]


def _mean_rate(weighted: Iterable[tuple[float, float]]) -> float:
    """Returns the rate whose time per token is the mean of those of (weight, rate) pairs."""
    pairs = list(weighted)
    unit = pairs[0][1]  # so that a single rate is returned exactly
    return unit / sum(weight * (unit / rate) for weight, rate in pairs)


def _exchange_s(size: int, curve: Mapping[int, float]) -> float:
    """Returns the part of a step's time that does not grow with its micro batches.

    A step takes `size * count / rate`. This leaves out the tokens of a sample, which are the same
    in all points.
    """
    (first, *_, last), (rate, *_, last_rate) = list(curve), list(curve.values())
    began_s, ended_s = size * first / rate, size * last / last_rate
    return max(0.0, began_s - first * (ended_s - began_s) / (last - first))


def _extend(size: int, count: int, curve: Mapping[int, float], exchange_s: float) -> float:
    """Returns the rate of a micro batch size at a number per step, beyond its own points too."""
    counts = list(curve)
    nearest = min(max(count, counts[0]), counts[-1])
    rate = _mean_rate(
        (share, curve[counts[index]]) for index, share in _neighbours(counts, nearest)
    )
    if nearest == count:
        return rate
    step_s = size * nearest / rate
    exchange_s = min(exchange_s, step_s)
    return size * count / (exchange_s + (step_s - exchange_s) * count / nearest)


def _cumulate(
    table: Sequence[Sequence[float]], choose: Callable[[float, float], float]
) -> list[list[float]]:
    """Returns a table of `choose` over all values up to the same row and column."""
    rows = [accumulate(row, choose) for row in table]
    columns = [accumulate(column, choose) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _reverse(table: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(reversed(row)) for row in reversed(table)]


def parse_points(text: str) -> dict[Size, float]:
    """Returns the points of `rampup.efficiency`.

    An entry is MICRO_BATCH_SIZExMICRO_BATCHES:TOKENS_PER_SECOND, such as `8x1:14000`: samples per
    micro batch, micro batches per rank and step, and tokens per second per GPU. Without the size,
    as in `1:9000 4:11500`, the rates are for the run's only micro batch size. The result gives that
    size as 1, and its rates apply to every size.

    Raises:
        UsageError: there are no entries or too many, or one is malformed or repeated.
    """
    points: dict[Size, float] = {}
    words = text.replace(",", " ").split()
    if len(words) > MOST_SURFACE_POINTS:
        raise UsageError(
            f"{EFFICIENCY_KEY} has {len(words)} points; the limit is {MOST_SURFACE_POINTS}",
            keys=(EFFICIENCY_KEY,),
            remedy=f"up to {MOST_SURFACE_POINTS} points",
        )
    one_size = is_curve(text)
    for word in words:
        sizes, _, rate = word.partition(":")
        size, _, count = f"1x{sizes}".partition("x") if one_size else sizes.partition("x")
        point, tokens_per_s = (parse_count(size), parse_count(count)), _parse_positive(rate)
        if not point[0] or not point[1] or tokens_per_s is None or point in points:
            form = f"{'' if one_size else 'MICRO_BATCH_SIZEx'}MICRO_BATCHES:TOKENS_PER_SECOND"
            raise UsageError(
                f"{EFFICIENCY_KEY}={text!r}: {word!r} is not {form}, each combination once",
                keys=(EFFICIENCY_KEY,),
                remedy=set_to(EFFICIENCY_KEY, CURVE if one_size else SURFACE),
            )
        points[point[0], point[1]] = tokens_per_s
    if not points:
        raise UsageError(
            f"{EFFICIENCY_KEY} is empty",
            keys=(EFFICIENCY_KEY,),
            remedy=set_to(EFFICIENCY_KEY, CURVE, None),
        )
    return points


def is_curve(text: str) -> bool:
    """Returns whether `rampup.efficiency` names no micro batch sizes."""
    return "x" not in text


def check_curve(text: str, micro_batch_sizes: Collection[int]) -> None:
    """Checks that rates without a micro batch size are used for one size only.

    Raises:
        UsageError: there are several sizes.
    """
    if is_curve(text) and len(set(micro_batch_sizes)) > 1:
        sizes = sorted(set(micro_batch_sizes))
        raise UsageError(
            f"{EFFICIENCY_KEY}={text!r} holds for one micro batch size, and there are"
            f" {listed([*map(str, sizes)])}",
            keys=(EFFICIENCY_KEY, MICRO_KEY),
            remedy=set_to(EFFICIENCY_KEY, SURFACE, note=" (a micro batch size before each x)"),
        )


def efficiency_text(points: Mapping[Size, float]) -> str:
    """Returns points as the text of `rampup.efficiency`, with their micro batch sizes."""
    return " ".join(f"{size}x{count}:{rate:.12g}" for (size, count), rate in sorted(points.items()))


def _parse_positive(text: str) -> float | None:
    count = parse_count(text)
    try:
        rate = float(text) if count is None else float(count)
    except ValueError:
        return None
    return rate if 0 < rate < float("inf") else None
