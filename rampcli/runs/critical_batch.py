"""What runs have measured about their critical batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.critical_batch import CriticalBatch
from rampcli.batch.noise_scale import SCALE_COLUMNS
from rampcli.runs.columns import Columns
from rampcli.runs.directory import RunDirectory

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
class Measurements:
    """What runs have measured about the critical batch, in order of consumed samples."""

    noise: tuple[NoisePoint, ...]

    def critical(self) -> list[CriticalBatch]:
        """Returns the critical batch as far as it is known.

        The noise scale is a lower bound of it, and so is the lower end of its interval.
        """
        return [CriticalBatch(one.consumed_samples, one.low, True) for one in self.noise]


def read_measurements(runs: Sequence[RunDirectory]) -> Measurements:
    """Returns what several runs have measured, all together."""
    noise = sorted(
        (point for run in runs for point in read_noise(run)),
        key=attrgetter("consumed_samples"),
    )
    return Measurements(noise=tuple(noise))


def read_noise(run: RunDirectory) -> list[NoisePoint]:
    """Returns the noise scale over the parts of a run. It is empty if none was measured."""
    columns = Columns(run.metrics, names=("consumed_samples", *SCALE_COLUMNS))
    columns.read()
    lows = columns.numbers(LOW) if LOW in columns else None
    if lows is None:
        return []
    known = np.flatnonzero(~np.isnan(lows))
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
