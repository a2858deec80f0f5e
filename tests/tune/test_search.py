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
