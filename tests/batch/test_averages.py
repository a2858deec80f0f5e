import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.averages import ema_share


@given(tokens=st.lists(st.integers(1, 10**13), min_size=1, max_size=50), halvings=st.integers(1, 9))
def test_the_distance_halves_in_a_half_life_of_tokens_whatever_the_batches(tokens, halvings):
    half_life_tokens = -(-sum(tokens) // halvings)
    kept = math.prod(1 - ema_share(one, half_life_tokens=half_life_tokens) for one in tokens)
    assert kept == pytest.approx(0.5 ** (sum(tokens) / half_life_tokens), rel=1e-9)


def test_a_share_of_few_tokens_is_not_rounded_away():
    assert ema_share(1, half_life_tokens=10**15) == pytest.approx(math.log(2) * 1e-15)
