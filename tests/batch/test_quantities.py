from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.quantities import parse_count, shorten

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@given(
    number=st.decimals(min_value=0, max_value=10**15, places=3), unit=st.sampled_from(sorted(UNITS))
)
def test_a_count_is_the_exact_product_of_its_number_and_its_unit(number, unit):
    product = Decimal(number) * UNITS[unit]
    expected = int(product) if product == int(product) else None
    assert parse_count(f"{number:f}{unit}") == expected


@given(number=st.integers(0, 10**30), unit=st.sampled_from(sorted(UNITS)))
def test_underscores_group_digits_without_changing_the_count(number, unit):
    assert (
        parse_count(f"{number:_}{unit}") == parse_count(f"{number}{unit}") == number * UNITS[unit]
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *[("50", 50), ("50_000_000", 50_000_000), ("50M", 50_000_000), ("2.5K", 2500)],
        *[("12.0", 12), (" 50M ", 50_000_000), ("9" * 80, 10**80 - 1)],
    ],
)
def test_a_count_has_a_unit_or_none_and_may_be_between_blanks(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "M",
            "50m",
            "50MB",
            "-50",
            "-50M",
            "+50M",
            "5e3",
            "5e3K",
            ".5M",
            "1.M",
            "1,5M",
            "50 M",
        ],
        *["_5M", "0x5K", "nanM", "9" * 81],
        *["0.0001K", "1.2345K", "0.5", "1.0000000000001T"],
    ],
)
def test_text_other_than_a_whole_number_with_a_unit_is_rejected(text):
    assert parse_count(text) is None


@given(count=st.integers(0, 10**18))
def test_a_shortened_count_is_exact_to_three_digits(count):
    assert abs(parse_count(shorten(count)) - count) <= Decimal(count) / 200


@given(count=st.integers(0, 999))
def test_a_short_count_is_shown_unchanged(count):
    assert shorten(count) == str(count)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (2_930_000_000, "2.93B"),
        (134_000_000, "134M"),
        (804, "804"),
        (1000, "1.00K"),
        (10**9, "1.00B"),
        (1500, "1.50K"),
        (12_345, "12.3K"),
        (2.5, "2.5"),
        *[(0, "0"), (999.9, "1.00K"), (9996, "10.0K"), (999_999, "1.00M")],
        *[(133_965_568, "134M"), (9.34e12, "9.34T")],
    ],
)
def test_a_shortened_count_has_three_digits_and_the_unit_in_which_it_is_at_least_one(count, text):
    assert shorten(count) == text
