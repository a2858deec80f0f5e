"""Shortens long columns for charts without losing an extreme.

Rows are divided into buckets. A bucket keeps the mean, the minimum and the maximum of its values.
Rows without a value are NaN; they do not count, and a bucket of only those is NaN.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 64
"""Rows of a block. Blocks are summarised once, so that wide buckets need not read every row."""
FEWEST_BLOCKS = 4
"""Blocks per bucket from which the edges of buckets are rounded to blocks."""

Values = NDArray[np.float64]
RowNumbers = NDArray[np.int64]


class Blocks:
    """Summaries of the complete blocks of a column that grows.

    Attributes:
        parts: minima, maxima, sums and counts, one column per block.
    """

    def __init__(self) -> None:
        self.parts = np.empty((4, 0))

    def extend(self, values: Values) -> None:
        """Adds the blocks that are complete in `values`, the whole column, and were not before."""
        known, complete = self.parts.shape[1], len(values) // BLOCK_ROWS
        if complete == known:
            return
        new = values[known * BLOCK_ROWS : complete * BLOCK_ROWS]
        starts = np.arange(0, len(new), BLOCK_ROWS)
        self.parts = np.concatenate((self.parts, _reduce(new, starts)), axis=1)


def bucket_edges(first: int, end: int, *, most: int) -> RowNumbers:
    """Divides the rows from `first` to before `end` into at most `most` buckets of equal size.

    Returns the first row of each bucket, and `end`. There is at least one row, and at least one
    bucket.
    """
    count = min(most, end - first)
    return first + np.arange(count + 1, dtype=np.int64) * (end - first) // count


def fill_buckets(
    values: Values, edges: RowNumbers, blocks: Blocks
) -> tuple[Values, Values, Values]:
    """Returns the means, minima and maxima of a column in buckets.

    Args:
        edges: first rows of the buckets and the end of the last one, as `bucket_edges` returns
            them. If buckets are wide, their first rows are rounded down to whole blocks.
    """
    starts, end = edges[:-1], int(edges[-1])
    if end - int(edges[0]) < len(starts) * FEWEST_BLOCKS * BLOCK_ROWS:
        inside = values[int(edges[0]) : end]
        low, high, total, count = _reduce(inside, starts - edges[0])
    else:
        known = blocks.parts.shape[1]
        first, complete = int(starts[0]) // BLOCK_ROWS, min(end // BLOCK_ROWS, known)
        parts = blocks.parts[:, first:complete]
        if complete * BLOCK_ROWS < end:  # rows after the last complete block
            rest = _reduce(values[complete * BLOCK_ROWS : end], np.zeros(1, dtype=np.int64))
            parts = np.concatenate((parts, rest), axis=1)
        places = starts // BLOCK_ROWS - first
        with np.errstate(invalid="ignore"):
            low = np.fmin.reduceat(parts[0], places)
            high = np.fmax.reduceat(parts[1], places)
        total, count = (np.add.reduceat(part, places) for part in parts[2:])
    with np.errstate(invalid="ignore"):
        return total / count, low, high


def bucket_means(values: Values, edges: RowNumbers) -> Values:
    """Returns the mean of each bucket of a column, exactly."""
    _, _, total, count = _reduce(values[edges[0] : edges[-1]], edges[:-1] - edges[0])
    with np.errstate(invalid="ignore"):
        return total / count


def _reduce(values: Values, starts: RowNumbers) -> tuple[Values, Values, Values, Values]:
    """Returns minima, maxima, sums and counts of the values from each start to the next."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return (
            np.fmin.reduceat(values, starts),
            np.fmax.reduceat(values, starts),
            np.add.reduceat(np.where(known, values, 0.0), starts, dtype=np.float64),
            np.add.reduceat(known, starts, dtype=np.float64),
        )


def change_rows(*columns: Values) -> RowNumbers:
    """Returns the rows, from 1, in which one of the columns differs from the row before."""
    changes = np.zeros(max(0, len(columns[0]) - 1), dtype=np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.flatnonzero(changes) + 1
