"""What runs have measured about their critical batch, and the schedule that stays below it.

Beyond the critical batch, a larger batch saves few steps or costs loss. It grows during training.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.noise_scale import SCALE_COLUMNS
from rampcli.batch.ramp import RampSchedule, StageExtent, Threshold
from rampcli.cbs.folder import read_branches
from rampcli.runs.columns import Columns
from rampcli.runs.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """A measurement of the critical batch.

    Attributes:
        consumed_samples: progress of the run at which it was measured.
        samples: the critical batch, in samples per step.
        is_lower_bound: it may be larger.
    """

    consumed_samples: int
    samples: float
    is_lower_bound: bool = False


def critical_batch_at(
    measured: Sequence[CriticalBatch], consumed_samples: int
) -> CriticalBatch | None:
    """Returns the newest measurement at `consumed_samples`, or None before the first one.

    A measurement holds until the next one: between two, the critical batch is not guessed.

    Args:
        measured: in ascending order of `consumed_samples`.
    """
    index = bisect_right(measured, consumed_samples, key=attrgetter("consumed_samples"))
    return measured[index - 1] if index else None


def doubling_ramp(
    measured: Sequence[CriticalBatch], *, start: int, largest: int, end_sample: int
) -> RampSchedule:
    """Returns the batch that doubles as soon as twice its size is not above the critical batch.

    A size has to stay at or below all later measurements, too: some are higher by chance.

    Source: batch size warm-up (Merrill et al., arXiv 2505.23971).

    Args:
        measured: in ascending order of `consumed_samples`.
        start: the first batch, in samples per step.
        largest: no batch is above this, in samples per step.
        end_sample: samples of the run. A size that would not get a single whole step is left out.
    """
    thresholds = [Threshold(0, start)]
    least = [*accumulate((one.samples for one in reversed(measured)), min)][::-1]
    for one, samples in zip(measured, least, strict=True):
        size = thresholds[-1].global_batch_size
        while 2 * size <= min(samples, largest):
            size *= 2
        begin = one.consumed_samples
        if size == thresholds[-1].global_batch_size or end_sample - begin < size:
            continue
        if begin == thresholds[-1].first_sample:
            thresholds.pop()
        thresholds.append(Threshold(begin, size))
    return RampSchedule(thresholds=tuple(thresholds))


def samples_beyond(
    stages: Sequence[StageExtent],
    measured: Sequence[CriticalBatch],
    *,
    first_sample: int = 0,
    end_sample: int,
) -> tuple[int, int]:
    """Returns how many samples are beyond the critical batch, and for how many that is unknown.

    A sample is beyond it if the batch of its step is above the measurement that holds there. It is
    unknown before the first measurement, and where the batch is above a lower bound.

    Args:
        stages: those of a run or of a phase, which begins and ends with the given samples.
        measured: in ascending order of `consumed_samples`.
    """
    starts = (*(one.first_sample for one in stages), *(one.consumed_samples for one in measured))
    places = sorted({first_sample, *(start for start in starts if start > first_sample)})
    beyond = unknown = 0
    for begin, end in zip(places, [*places[1:], end_sample], strict=True):
        samples = max(0, min(end, end_sample) - begin)
        stage = stages[bisect_right(stages, begin, key=attrgetter("first_sample")) - 1]
        critical = critical_batch_at(measured, begin)
        if critical is None or (
            critical.is_lower_bound and stage.global_batch_size > critical.samples
        ):
            unknown += samples
        elif stage.global_batch_size > critical.samples:
            beyond += samples
    return beyond, unknown


def from_sample(measured: Sequence[CriticalBatch], first_sample: int) -> Sequence[CriticalBatch]:
    """Returns measurements counted from the first sample of a phase, at which the newest holds."""
    if first_sample == 0:
        return measured
    begun = bisect_right(measured, first_sample, key=attrgetter("consumed_samples"))
    return [
        replace(one, consumed_samples=max(0, one.consumed_samples - first_sample))
        for one in measured[max(0, begun - 1) :]
    ]


LOW = SCALE_COLUMNS[1]
BLOCKS = 20
"""Parts of a run whose noise scale is given as one number: its median over the part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisePoint:
    """The noise scale over a part of a run, in sequences.

    Attributes:
        run: its directory.
        consumed_samples: at the end of the part.
        value: the median, or None if only a lower bound is known.
        low: median of the lower ends of the intervals.
        high: median of the upper ends, or None if they are unknown.
    """

    run: Path
    consumed_samples: int
    value: float | None
    low: float
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchedBatch:
    """The critical batch that branches of a checkpoint have found.

    Attributes:
        run: directory of the run that they branched off.
        consumed_samples: at the checkpoint.
        critical_batch_size: in samples per step.
        is_lower_bound: no larger batch was tried.
        exponent: a batch that was k times as large had k^exponent times the learning rate.
        decays: whether the learning rate of a branch fell.
        notes: what is uncertain about it.
    """

    run: Path
    consumed_samples: int
    critical_batch_size: int
    is_lower_bound: bool
    exponent: float
    decays: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """What runs have measured about the critical batch, each in order of consumed samples."""

    branches: tuple[BranchedBatch, ...]
    noise: tuple[NoisePoint, ...]

    def critical(
        self, counts: Callable[[Path, int], bool] = lambda _run, _at: True
    ) -> list[CriticalBatch]:
        """Returns the critical batch as far as it is known.

        Branches measure it. Without them, the lower end of the noise scale's interval stands for
        it, as a bound: it is a guide, and what is above it is unknown.

        Args:
            counts: whether what the step of a run from some sample on has measured counts.
        """
        return [
            CriticalBatch(one.consumed_samples, one.critical_batch_size, one.is_lower_bound)
            for one in self.branches
            if counts(one.run, one.consumed_samples)
        ] or [
            CriticalBatch(one.consumed_samples, one.low, True)
            for one in self.noise
            if counts(one.run, one.consumed_samples - 1)
        ]


def read_measurements(runs: Sequence[RunDirectory]) -> Measurements:
    """Returns what several runs have measured, all together.

    Raises:
        DamagedFileError: a file is damaged.
    """
    by_samples = attrgetter("consumed_samples")
    branches = (
        BranchedBatch(
            run=run.path,
            consumed_samples=one["consumed_samples"],
            critical_batch_size=one["critical_batch_size"],
            is_lower_bound=one["is_lower_bound"],
            exponent=one["exponent"],
            decays=one["decays"],
            notes=tuple(one["notes"]),
        )
        for run in runs
        for one in read_branches(run)
        if one["critical_batch_size"] is not None
    )
    noise = (point for run in runs for point in read_noise(run))
    return Measurements(
        branches=tuple(sorted(branches, key=by_samples)),
        noise=tuple(sorted(noise, key=by_samples)),
    )


def read_noise(run: RunDirectory) -> list[NoisePoint]:
    """Returns the noise scale over the parts of a run. It is empty if none was measured."""
    columns = Columns(run.metrics, names=("consumed_samples", *SCALE_COLUMNS))
    columns.read()
    lows = columns.numbers(LOW) if LOW in columns else None
    if lows is None:
        return []
    known = np.flatnonzero(~np.isnan(lows))
    if not len(known):  # too few steps have measured it
        return []
    points = []
    for part in np.array_split(known, min(BLOCKS, len(known))):
        value, low, high = (_median_of(columns, name, part) for name in SCALE_COLUMNS)
        assert low is not None
        points.append(
            NoisePoint(
                run=run.path,
                consumed_samples=int(columns["consumed_samples"][part[-1]]),
                value=value,
                low=low,
                high=high,
            )
        )
    return points


def _median_of(columns: Columns, name: str, rows: NDArray[np.int64]) -> float | None:
    """Returns the median of a column over some rows, or None if fewer than half have a value."""
    values = columns.numbers(name)
    assert values is not None
    known = values[rows][~np.isnan(values[rows])]
    return float(np.median(known)) if 2 * len(known) >= len(rows) else None
