import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import LONGEST_SHOWN, UsageError, printable


@given(st.text(st.characters(exclude_categories=())))
def test_printable_text_is_one_visible_line_of_limited_length(text):
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) <= LONGEST_SHOWN
    shown.encode()


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=LONGEST_SHOWN))
def test_a_short_visible_text_is_unchanged(text):
    assert printable(text) == text


def test_both_ends_of_a_long_text_are_shown():
    text = f"begin{'x' * 10_000}end"
    assert printable(text).startswith("begin")
    assert printable(text).endswith("end")


@pytest.mark.parametrize("control", ["\x1b[31m", "\n", "\r", "\x00", "\u202e", "\udcff"])
def test_no_part_of_a_message_reaches_the_terminal_with_a_control_character(control):
    error = UsageError(f"a{control}b", remedy=f"c{control}d")
    error.set_by = (f"e{control}f",)
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert len(str(error).split("\n")) == 3
