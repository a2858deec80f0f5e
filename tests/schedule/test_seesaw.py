import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.schedule.learning_rate import LearningRate
from rampcli.schedule.seesaw import MOST_STAIRS, staircase, steps_in_the_limit

END = 2 * 10**8


def quarter_cosine(end):
    return lambda consumed: math.cos(math.pi / 2 * min(1.0, consumed / end))


def linear(end):
    return lambda consumed: 1 - min(1.0, consumed / end)


def cosine(end):
    return lambda consumed: (1 + math.cos(math.pi * min(1.0, consumed / end))) / 2


def level(end):  # noqa: ARG001
    return lambda consumed: 1.0  # noqa: ARG005


DECAYS = st.sampled_from([quarter_cosine, linear, cosine])


@st.composite
def decays(draw):
    """Arguments of `staircase`: a rate that falls from `first_sample` to zero at the end."""
    first, end = draw(st.integers(0, 10**6)), draw(st.integers(10**3, 10**8))
    fall, unit = draw(DECAYS)(end), draw(st.sampled_from([1, 3, 8, 64]))
    return {
        "relative_rate": lambda consumed: 1.0 if consumed < first else fall(consumed - first),
        "global_batch_size": unit * draw(st.integers(1, 64)),
        "unit": unit,
        "factor": draw(st.floats(1.02, 4)),
        "first_sample": first,
        "end_sample": first + end,
    }


def saved(factor, *, end=END, global_batch_size=1000, fall=quarter_cosine):
    """Returns the share of the optimiser steps that a staircase saves."""
    ramp = staircase(
        fall(end),
        global_batch_size=global_batch_size,
        unit=1,
        factor=factor,
        first_sample=0,
        end_sample=end,
    )
    return 1 - ramp.steps_to(end) / -(-end // global_batch_size)


@pytest.mark.parametrize(("factor", "percent"), [(1.1, 33.8), (1.5, 27.1), (2.0, 22.0)])
@pytest.mark.parametrize("end", [END, 10**12])
def test_seesaw_on_a_quarter_cosine_saves_the_share_of_steps_in_the_paper(factor, percent, end):
    assert 100 * saved(factor, end=end) == pytest.approx(percent, abs=0.1)


def test_seesaw_with_small_steps_saves_1_minus_2_over_pi_of_a_quarter_cosine():
    limit = 1 - steps_in_the_limit(quarter_cosine(END), global_batch_size=1000, end_sample=END) / (
        END / 1000
    )
    assert limit == pytest.approx(1 - 2 / math.pi, abs=1e-6)
    assert 100 * limit == pytest.approx(36.3, abs=0.05)


@pytest.mark.parametrize(("fall", "share"), [(linear, 1 / 2), (cosine, 1 / 2), (level, 0.0)])
def test_the_limit_of_saved_steps_is_exact_for_known_decays(fall, share):
    limit = 1 - steps_in_the_limit(fall(END), global_batch_size=1000, end_sample=END) / (END / 1000)
    assert limit == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("fall", [quarter_cosine, linear, cosine])
def test_smaller_stairs_save_more_steps_but_never_more_than_the_limit(fall):
    limit = 1 - steps_in_the_limit(fall(END), global_batch_size=1000, end_sample=END) / (END / 1000)
    shares = [saved(factor, fall=fall) for factor in (4.0, 2.0, 1.5, 1.1, 1.02)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < limit
    assert limit - shares[-1] < 0.02


@given(decay=decays())
def test_every_batch_of_a_staircase_is_a_whole_number_of_units_and_larger_than_the_one_before(
    decay,
):
    thresholds = staircase(**decay).thresholds
    assert (thresholds[0].first_sample, thresholds[0].global_batch_size) == (
        0,
        decay["global_batch_size"],
    )
    assert all(threshold.global_batch_size % decay["unit"] == 0 for threshold in thresholds)
    for one, other in pairwise(thresholds):
        assert one.global_batch_size < other.global_batch_size
        assert one.first_sample < other.first_sample
    assert len(thresholds) <= MOST_STAIRS


@given(decay=decays())
def test_a_stair_begins_at_the_first_sample_where_the_rate_has_fallen_by_exactly_its_share(decay):
    for threshold in staircase(**decay).thresholds[1:]:
        share = decay["global_batch_size"] / threshold.global_batch_size
        assert decay["relative_rate"](threshold.first_sample) <= share
        assert decay["relative_rate"](threshold.first_sample - 1) > share
        assert (
            decay["first_sample"]
            < threshold.first_sample
            <= decay["end_sample"] - threshold.global_batch_size
        )


@given(decay=decays())
def test_a_stair_grows_by_its_factor_and_is_dropped_only_if_the_next_begins_at_its_sample(decay):
    size = exact = decay["global_batch_size"]
    left_out = []
    for threshold in staircase(**decay).thresholds[1:]:
        while size < threshold.global_batch_size:
            left_out.append(size)
            exact *= decay["factor"]
            size = max(size + decay["unit"], decay["unit"] * round(exact / decay["unit"]))
        assert size == threshold.global_batch_size
        just_before = decay["relative_rate"](threshold.first_sample - 1)
        assert all(just_before > decay["global_batch_size"] / smaller for smaller in left_out[1:])
        left_out = []


@given(decay=decays())
def test_a_staircase_never_takes_more_steps_than_the_batch_it_starts_from(decay):
    ramp = staircase(**decay)
    assert ramp.steps_to(decay["end_sample"]) <= -(
        -decay["end_sample"] // decay["global_batch_size"]
    )


def test_a_rate_that_does_not_fall_keeps_the_batch():
    ramp = staircase(
        level(10**6), global_batch_size=8, unit=8, factor=2, first_sample=0, end_sample=10**6
    )
    assert [
        (threshold.first_sample, threshold.global_batch_size) for threshold in ramp.thresholds
    ] == [(0, 8)]


def test_a_sudden_fall_of_the_rate_takes_all_its_stairs_at_once():
    ramp = staircase(
        lambda consumed: 1.0 if consumed < 5000 else 0.1,
        global_batch_size=8,
        unit=8,
        factor=2,
        first_sample=0,
        end_sample=10**6,
    )
    assert [
        (threshold.first_sample, threshold.global_batch_size) for threshold in ramp.thresholds
    ] == [(0, 8), (5000, 64)]


@given(decay=decays(), peak=st.floats(1e-6, 1))
def test_the_rate_of_a_stair_divided_by_the_root_of_its_growth_is_the_decayed_rate(decay, peak):
    """The rate falls by `sqrt(a)` as the batch grows by `a`: rate / sqrt(batch) falls by `a`."""
    ramp = staircase(**decay)
    rate = LearningRate(
        decay_style="seesaw",
        peak=peak,
        floor=0.0,
        warmup_samples=0,
        end_sample=decay["end_sample"],
        wsd_decay_samples=None,
        batch_coupling="none",
        first_batch_size=decay["global_batch_size"],
        largest_batch_size=ramp.target,
    )
    for threshold in ramp.thresholds:
        batch = threshold.global_batch_size
        growth = batch / decay["global_batch_size"]
        assert rate.at(threshold.first_sample + batch, global_batch_size=batch) / math.sqrt(
            growth
        ) == pytest.approx(peak / growth)
