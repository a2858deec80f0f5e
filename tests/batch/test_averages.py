import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.averages import ExponentialMean, UniformMean


@given(tokens=st.lists(st.integers(1, 10**13), min_size=1, max_size=50), halvings=st.integers(1, 9))
def test_the_distance_halves_in_a_half_life_of_tokens_whatever_the_batches(tokens, halvings):
    half_life_tokens = -(-sum(tokens) // halvings)
    rule = ExponentialMean(half_life_tokens=half_life_tokens)
    kept = math.prod(1 - rule.share(10**6, 10**6 + one) for one in tokens)
    assert kept == pytest.approx(0.5 ** (sum(tokens) / half_life_tokens), rel=1e-9)


def test_a_share_of_few_tokens_is_not_rounded_away():
    share = ExponentialMean(half_life_tokens=10**15).share(0, 1)
    assert share == pytest.approx(math.log(2) * 1e-15)


@given(
    steps=st.lists(st.tuples(st.integers(1, 1000), st.integers(-9, 9)), min_size=1, max_size=30),
    first=st.integers(0, 5000),
)
def test_a_mean_counts_the_weights_after_each_step_by_its_tokens_after_a_position(steps, first):
    rule = UniformMean(first_token=first)
    mean, total, counted, begin = 123.0, 0, 0, 0
    for tokens, weight in steps:
        end = begin + tokens
        mean += rule.share(begin, end) * (weight - mean)
        behind = len(range(max(begin, first), end))
        total, counted, begin = total + behind * weight, counted + behind, end
        assert rule.has_begun(end) == (counted > 0)
    assert mean == pytest.approx(total / counted if counted else 123.0)
