import random
from math import comb
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.tune.median import CONFIDENCE, FEWEST, median_of


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60))
def test_the_interval_encloses_the_median_of_the_times(times):
    found = median_of(times)
    assert found.s == median(times)
    assert found.low_s <= found.s <= found.high_s
    assert found.spread >= 0


@pytest.mark.parametrize("count", [FEWEST, 9, 20, 100])
def test_the_interval_holds_the_true_median_in_95_percent_of_samples(count):
    numbers = random.Random(count)
    held = 0
    for _ in range(2000):
        found = median_of([numbers.lognormvariate(0, 1) for _ in range(count)])
        held += found.low_s <= 1.0 <= found.high_s
    assert held / 2000 >= 0.94


def test_more_times_give_a_narrower_interval():
    numbers = random.Random(1)
    times = [numbers.lognormvariate(0, 0.1) for _ in range(400)]
    assert median_of(times).spread < median_of(times[:20]).spread < median_of(times[:8]).spread


@pytest.mark.parametrize("count", [*range(FEWEST, 40), 1000, 1100])
def test_the_interval_leaves_out_as_many_times_as_its_confidence_allows(count):
    low = int(median_of(range(1, count + 1)).low_s)  # the times are their own places
    outside = [sum(comb(count, below) for below in range(place)) for place in (low, low + 1)]
    assert 2 * outside[0] / 2**count <= 1 - CONFIDENCE < 2 * outside[1] / 2**count
