from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.quantities import parse_count

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@given(number=st.decimals(min_value=0, max_value=10**15, places=3), unit=st.sampled_from(sorted(UNITS)))
def test_a_count_with_a_unit_is_the_exact_product(number, unit):
    product = Decimal(number) * UNITS[unit]
    expected = int(product) if product == int(product) else None
    assert parse_count(f"{number:f}{unit}") == expected


@given(number=st.integers(0, 10**30), unit=st.sampled_from(sorted(UNITS)))
def test_underscores_group_digits_without_changing_the_count(number, unit):
    assert parse_count(f"{number:_}{unit}") == number * UNITS[unit]


@pytest.mark.parametrize("text", ["0.0001K", "1.2345K", "0.5", "1.0000000000001T"])
def test_a_count_that_is_not_whole_is_no_count(text):
    assert parse_count(text) is None


@pytest.mark.parametrize(
    "text", ["", "M", "50", "50m", "50MB", "-50M", "+50M", "5e3K", ".5M", "1.M", "1,5M", "50 M", "_5M", "0x5K", "nanM"]
)
def test_a_text_that_is_no_number_with_a_unit_is_no_count(text):
    assert parse_count(text) is None


def test_blanks_around_a_count_do_not_matter():
    assert parse_count(" 50M ") == 50_000_000
