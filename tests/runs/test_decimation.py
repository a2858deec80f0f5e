import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.runs.decimation import (
    BLOCK_ROWS,
    FEWEST_BLOCKS,
    Blocks,
    bucket_edges,
    change_rows,
    fill_buckets,
)

VALUES = st.lists(st.one_of(st.just(np.nan), st.floats(-1e6, 1e6)), min_size=1, max_size=40)


def blocks_of(values):
    blocks = Blocks()
    blocks.extend(values)
    return blocks


@given(first=st.integers(0, 100), rows=st.integers(1, 500), most=st.integers(1, 60))
def test_buckets_divide_all_rows_evenly(first, rows, most):
    edges = bucket_edges(first, first + rows, most=most)
    sizes = np.diff(edges)
    assert (edges[0], edges[-1], len(sizes)) == (first, first + rows, min(most, rows))
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@given(values=VALUES, most=st.integers(1, 50))
def test_a_bucket_has_the_mean_and_the_extremes_of_its_rows(values, most):
    column = np.array(values)
    edges = bucket_edges(0, len(column), most=most)
    buckets = fill_buckets(column, edges, blocks_of(column))
    for index, (begin, end) in enumerate(itertools.pairwise(edges)):
        known = [value for value in column[begin:end] if value == value]
        expected = [np.mean(known), min(known), max(known)] if known else [np.nan] * 3
        found = [figures[index] for figures in buckets]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("first", [0, 1, 777])
@pytest.mark.parametrize("end", [40_000, 40_001, 39_937])
def test_wide_buckets_lose_no_extreme_and_no_row(first, end):
    column = np.random.default_rng(0).normal(size=40_001)
    column[[first, 12_345, end - 1]] = [900.0, -1000.0, 1000.0]
    edges = bucket_edges(first, end, most=(end - first) // (FEWEST_BLOCKS * BLOCK_ROWS))
    mean, low, high = fill_buckets(column, edges, blocks_of(column))
    assert np.nanmin(low) == -1000.0
    assert high[0] == 900.0
    assert high[-1] == 1000.0
    # Inner edges move by less than a block, so means hardly do.
    exact = [column[begin:stop].mean() for begin, stop in itertools.pairwise(edges)]
    assert mean[1:-1] == pytest.approx(exact[1:-1], abs=10.0)


def test_blocks_that_grow_are_those_of_the_whole_column():
    column = np.random.default_rng(1).normal(size=1000)
    grown = Blocks()
    for rows in (10, 64, 65, 300, 1000):
        grown.extend(column[:rows])
    whole = blocks_of(column)
    assert np.array_equal(grown.parts, whole.parts)


def test_a_column_changes_where_any_of_its_values_does():
    assert change_rows(np.array([1, 1, 2, 2, 2]), np.array([5, 5, 5, 5, 6])).tolist() == [2, 4]
    assert change_rows(np.array([], dtype=np.int64)).tolist() == []
