from hypothesis import given
from hypothesis import strategies as st

from rampcli.tune.search import SATURATED, next_size, next_smaller

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
def test_smaller_sizes_are_timed_until_one_is_too_slow(sizes, saturation, data):
    def throughput(size):
        return min(size, saturation)

    timed = {size: throughput(size) for size in [data.draw(st.sampled_from(sizes))]}
    while (size := next_smaller(sizes, timed)) is not None:
        assert size not in timed
        timed[size] = throughput(size)
    slowest = min(timed)
    too_slow = timed[slowest] < SATURATED * max(timed.values())
    assert too_slow or slowest == sizes[0]
