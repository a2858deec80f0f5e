import math
import random
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.cbs.paired_losses import (
    TOLERANCE,
    critical_multiple,
    difference,
    mean_loss,
    unpaired_standard_error,
)

LOSSES = st.lists(st.floats(0, 100), min_size=2, max_size=32)


def of_ten(losses):
    """Groups of ten tokens with these mean losses."""
    return [(10 * loss, 10.0) for loss in losses]


@given(LOSSES, st.randoms(use_true_random=False))
def test_with_groups_of_one_size_the_standard_error_is_that_of_a_mean(losses, source):
    others = [loss + source.uniform(-1, 1) for loss in losses]
    found = difference(of_ten(others), of_ten(losses))
    apart = [a - b for a, b in zip(others, losses, strict=True)]
    assert found.mean == pytest.approx(sum(apart) / len(apart), abs=1e-9)
    assert found.standard_error == pytest.approx(stdev(apart) / math.sqrt(len(apart)), abs=1e-9)


@given(LOSSES, st.floats(-1, 1))
def test_what_all_samples_have_in_common_adds_nothing_to_the_standard_error(losses, shift):
    found = difference(of_ten([loss + shift for loss in losses]), of_ten(losses))
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.standard_error == pytest.approx(0, abs=1e-9)


def test_a_large_group_counts_for_more_than_a_small_one():
    assert mean_loss([(300.0, 100.0), (10.0, 10.0)]) == pytest.approx(310 / 110)


def test_one_group_has_no_standard_error():
    assert difference([(2.0, 1.0)], [(1.0, 1.0)]).standard_error is None


def test_losses_of_other_samples_are_refused():
    with pytest.raises(ValueError, match="same samples"):
        difference([(2.0, 1.0)], [(1.0, 2.0)])


def test_pairs_are_told_apart_better_than_samples_of_their_own():
    source = random.Random(0)
    hard = [source.gauss(3, 0.5) for _ in range(32)]
    others = [loss + source.gauss(0, 0.05) for loss in hard]
    paired = difference(of_ten(others), of_ten(hard)).standard_error
    assert 3 * paired < unpaired_standard_error(of_ten(others), of_ten(hard))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=6))
def test_the_critical_multiple_is_the_largest_that_is_no_worse_than_a_smaller_one(losses):
    by_multiple = {2**at: of_ten([loss, loss]) for at, loss in enumerate(losses)}
    expected = max(
        2**at
        for at, loss in enumerate(losses)
        if all(loss - smaller <= TOLERANCE + 1e-12 for smaller in losses[:at])
    )
    near = any(abs(abs(a - b) - TOLERANCE) < 1e-9 for a in losses for b in losses)
    assert near or critical_multiple(by_multiple) == expected
