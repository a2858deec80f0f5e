"""What runs have measured about their critical batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.noise_scale import SCALE_COLUMNS
from rampcli.cbs.critical_batch import CriticalBatch
from rampcli.cbs.folder import read_branches
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
