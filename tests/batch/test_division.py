from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.division import TRIALS, divisors, nearest_divisors, nearest_multiples


@given(value=st.integers(1, 2000), unit=st.integers(2, 300))
def test_nearest_multiples_are_the_closest_positive_ones_on_both_sides(value, unit):
    if value % unit:
        below, above = range(unit, value, unit), range(unit, value + unit + 1, unit)
        assert nearest_multiples(value, unit) == [*below[-1:], above[-1]]


@given(number=st.integers(1, 3000), most=st.integers(1, 3000))
def test_divisors_are_all_up_to_the_limit(number, most):
    assert divisors(number, most=most) == [
        candidate for candidate in range(1, min(number, most) + 1) if number % candidate == 0
    ]


@given(number=st.integers(2, 3000), value=st.integers(1, 4000))
def test_nearest_divisors_are_the_closest_on_both_sides(number, value):
    if number % value:
        below = [candidate for candidate in range(1, value) if number % candidate == 0]
        above = [candidate for candidate in range(value + 1, number + 1) if number % candidate == 0]
        assert nearest_divisors(value, number) == below[-1:] + above[:1]


@given(number=st.integers(10**15, 10**30), most=st.integers(1, 200))
def test_small_divisors_of_a_number_of_any_size_are_all_found(number, most):
    assert divisors(number, most=most) == [
        candidate for candidate in range(1, most + 1) if number % candidate == 0
    ]


def test_small_divisors_and_their_partners_are_found_of_a_number_of_any_size():
    one, other = 100_003, 100_019  # primes beyond the trials
    assert one > TRIALS
    assert divisors(2 * one * other, most=10**30) == [1, 2, one * other, 2 * one * other]
