from dataclasses import replace
from math import hypot

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.tune.median import Median
from rampcli.tune.search import SATURATED, next_size, next_smaller, verdict_of
from rampcli.tune.trial import FITS, OUT_OF_MEMORY, Trial

SIZES = st.sets(st.integers(1, 500), min_size=1, max_size=40).map(sorted)


def search(sizes, largest, predicted, *, exhaustive=False):
    """Returns the sizes that a search tries, in order, if sizes up to `largest` fit."""
    fits = {}
    while (size := next_size(sizes, fits, predicted=predicted, exhaustive=exhaustive)) is not None:
        assert size not in fits
        fits[size] = size <= largest
    return fits


@given(SIZES, st.integers(0, 600), st.data())
def test_the_search_finds_the_largest_size_that_fits_from_any_prediction(sizes, largest, data):
    fits = search(sizes, largest, data.draw(st.sampled_from(sizes)))
    found = max((size for size, ok in fits.items() if ok), default=None)
    assert found == max((size for size in sizes if size <= largest), default=None)


@given(SIZES, st.integers(0, 600), st.data())
def test_the_number_of_trials_grows_with_the_logarithm_of_the_sizes(sizes, largest, data):
    fits = search(sizes, largest, data.draw(st.sampled_from(sizes)))
    assert len(fits) <= 2 * len(sizes).bit_length() + 1


@given(SIZES, st.data())
def test_a_right_prediction_takes_two_trials(sizes, data):
    right = data.draw(st.sampled_from(sizes))
    assert set(search(sizes, right, right)) == {
        right,
        *[size for size in sizes if size > right][:1],
    }


def test_an_exhaustive_search_walks_up_to_the_first_size_that_does_not_fit():
    assert search([1, 2, 4, 8, 16, 32], 4, 16, exhaustive=True) == {
        1: True,
        2: True,
        4: True,
        8: False,
    }


@given(SIZES, st.floats(1, 100), st.data())
def test_the_smallest_saturated_size_is_found_in_few_trials(sizes, saturation, data):
    smallest = data.draw(st.integers(0, sizes[-1]))
    fitting = [size for size in sizes if size >= smallest]

    def throughput(size):
        return min(size, saturation) if size in fitting else None

    tried = {sizes[-1]: throughput(sizes[-1])}
    while (size := next_smaller(sizes, tried)) is not None:
        assert size not in tried
        tried[size] = throughput(size)
    enough = SATURATED * throughput(sizes[-1])
    found = min(size for size, rate in tried.items() if rate is not None and rate >= enough)
    assert found == next(size for size in fitting if throughput(size) >= enough)
    assert len(tried) <= 2 * sizes[-1].bit_length() + 1


def test_after_another_search_an_exhaustive_one_tries_the_sizes_that_are_left():
    tried = {8: True, 16: False, 12: False}
    assert next_size([1, 2, 8, 12, 16], tried, predicted=8, exhaustive=True) == 1
    tried |= {1: True, 2: True}
    assert next_size([1, 2, 8, 12, 16], tried, predicted=8, exhaustive=True) is None


def trial(size, step_s, *, accumulate=1, verdict=FITS, steps=9):
    """Returns a trial on two ranks; `step_s` gives seconds by micro batches per step."""
    return Trial(
        micro_batch_size=size,
        verdict=verdict,
        reason=None,
        world_size=2,
        data_parallel_size=2,
        accumulate_grad_batches=accumulate,
        medians={
            count: Median(s=s, low_s=0.98 * s, high_s=1.04 * s, steps=steps)
            for count, s in step_s.items()
        },
        peak_memory_bytes=None,
        device=None,
        device_name=None,
    )


def test_the_smallest_size_within_3_percent_of_the_best_throughput_is_recommended():
    trials = [
        trial(1, {1: 0.083}),
        trial(2, {1: 0.091}),
        trial(4, {1: 0.171}),
        trial(8, {1: 0.340}),
        trial(16, {}, verdict=OUT_OF_MEMORY),
    ]
    verdict = verdict_of(trials)
    assert (verdict.largest, verdict.fastest, verdict.recommended) == (
        trials[3],
        trials[3],
        trials[2],
    )
    assert verdict.share == pytest.approx(0.994, abs=1e-3)


def test_a_larger_size_that_is_slower_is_not_recommended():
    trials = [trial(4, {1: 0.1}), trial(8, {1: 0.25})]
    verdict = verdict_of(trials)
    assert (verdict.largest, verdict.fastest, verdict.recommended) == (
        trials[1],
        trials[0],
        trials[0],
    )


def test_without_a_size_that_fits_there_is_no_verdict():
    assert verdict_of([trial(1, {}, verdict=OUT_OF_MEMORY)]) is None


def test_the_time_of_a_long_step_follows_from_two_short_ones():
    exchange_s, micro_batch_s = 1.0, 0.25
    short = {count: exchange_s + count * micro_batch_s for count in (1, 8)}
    long = trial(3, short, accumulate=64)
    assert long.step_s == pytest.approx(exchange_s + 64 * micro_batch_s)
    assert long.samples_per_s == pytest.approx(3 * 2 * 64 / long.step_s)
    # each micro batch that was not timed is as uncertain as the difference of the two
    half_s = hypot(9 * 0.03 * short[8], 8 * 0.03 * short[1])
    assert long.spread == pytest.approx(half_s / long.step_s)


def test_too_few_steps_have_no_interval():
    assert trial(3, {1: 0.7}, steps=5).spread is None
    assert trial(3, {1: 0.7}, steps=6).spread == pytest.approx(0.03)


def test_a_step_that_was_timed_itself_is_taken_as_it_is():
    assert trial(3, {5: 0.7}, accumulate=5).step_s == 0.7


@given(
    st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0.0, 0.6), st.floats(0.0, 1.0)), min_size=1)
)
def test_the_best_size_is_among_those_that_intervals_leave_possible(drawn):
    trials, truth = [], {}
    for size, (step_s, spread, place) in enumerate(drawn, start=1):
        low_s, high_s = step_s * (1 - spread), step_s * (1 + spread)
        median = Median(s=step_s, low_s=low_s, high_s=high_s, steps=9)
        trials.append(replace(trial(size, {1: step_s}), medians={1: median}))
        truth[size] = 2 * size / (low_s + place * (high_s - low_s))
    enough = SATURATED * max(truth.values())
    verdict = verdict_of(trials)
    possible = {verdict.recommended.micro_batch_size, *verdict.others}
    assert min(size for size, rate in truth.items() if rate >= enough) in possible
    assert all(truth[size] < truth[size // 2] for size in verdict.slower)


def test_a_size_that_was_timed_too_few_times_excludes_nothing():
    trials = [trial(4, {1: 0.1}, steps=2), trial(8, {1: 0.4}, steps=2)]
    assert (verdict_of(trials).others, verdict_of(trials).slower) == ([8], [])
