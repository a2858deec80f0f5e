import json
import os
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import DamagedFileError
from rampcli.files.records import ANY, COUNT, POSITIVE, RATE, check_shape, parse_json, read_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
SHAPE = {
    "name": str,
    "step": COUNT,
    "loss": (float, None),
    "rows?": [{"rate": RATE}],
    "sizes?": {...: POSITIVE},
    "any?": ANY,
}


@given(value=JSON)
def test_a_value_that_fits_has_the_types_of_the_shape(value):
    with suppress(DamagedFileError):
        check_shape(value, SHAPE, where="FILE")
        assert isinstance(value["name"], str)
        assert type(value["step"]) is int
        assert value["loss"] is None or isinstance(value["loss"], int | float)


@given(value=JSON.filter(lambda value: not isinstance(value, dict)))
def test_a_value_of_another_type_gives_one_message(value):
    with pytest.raises(DamagedFileError, match="FILE is damaged: it is not a mapping") as damaged:
        check_shape(value, SHAPE, where="FILE")
    assert damaged.value.exit_code == 5


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"loss": None},
        {"loss": 3},
        {"rows": []},
        {"rows": [{"rate": 0.1}, {"rate": 1}]},
        {"sizes": {"a": 1}},
        {"any": [{}]},
        {"more": {"deep": []}},
        {"step": 10**18},
    ],
)
def test_a_record_that_fits_its_shape_is_read_back_unchanged(tmp_path, facts):
    written = {"name": "x", "step": 0, "loss": 0.5} | facts
    (tmp_path / "file").write_text(json.dumps(written))
    assert read_json(tmp_path / "file", SHAPE) == written


@pytest.mark.parametrize(
    ("facts", "misfit"),
    [
        ({"name": 1}, "name is not text"),
        ({"step": -1}, "step is not a whole number, 0 or more"),
        ({"step": 1.0}, "step is not a whole number, 0 or more"),
        ({"step": True}, "step is not a whole number, 0 or more"),
        ({"step": 10**18 + 1}, "step is not a whole number, 0 or more"),
        ({"loss": "0.5"}, r"loss is not a number from -10\^18 to 10\^18"),
        ({"loss": False}, r"loss is not a number from -10\^18 to 10\^18"),
        ({"rows": {}}, "rows is not a list"),
        ({"rows": [{"rate": 1}, {"rate": 0}]}, r"rows\[1\]\.rate is not a number above 0"),
        ({"rows": [{}]}, r"rows\[0\] has no rate"),
        ({"sizes": {"a": 0}}, r"sizes\.a is not a whole number, 1 or more"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(facts, misfit):
    with pytest.raises(DamagedFileError, match=misfit):
        check_shape({"name": "x", "step": 0, "loss": 0.5} | facts, SHAPE, where="FILE")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 10**6,
        b'{"a":' * 10**5,
        b"NaN",
        b"-Infinity",
        b"1" * 5000,
        b"\x00",
        b'{"a": 1, "a": 1}',
    ],
    ids=range(10),
)
def test_invalid_json_gives_one_message(content):
    with pytest.raises(DamagedFileError, match="FILE is damaged"):
        parse_json(content, ANY, where="FILE")


def test_a_field_repeated_after_many_others_is_found_in_seconds():
    """Comparing every pair of fields would take hours for a line of 16 MB."""
    fields = [f'"{number}": 0' for number in range(40_000)]
    content = f"{{{','.join([*fields, fields[-1]])}}}".encode()
    began = time.process_time()
    with pytest.raises(DamagedFileError, match="39999 appears twice"):
        parse_json(content, ANY, where="FILE")
    assert time.process_time() - began < 5


def test_a_number_that_overflows_is_not_finite():
    with pytest.raises(DamagedFileError, match="1e999 is too large a number"):
        parse_json(b"1e999", float, where="FILE")


def test_a_file_that_is_too_large_or_not_regular_is_damaged_and_a_missing_one_is_not(tmp_path):
    (tmp_path / "large").write_text('"' + "x" * 100 + '"')
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DamagedFileError, match="larger than 50 bytes"):
        read_json(tmp_path / "large", str, most_bytes=50)
    with pytest.raises(DamagedFileError, match="not a regular file"):
        read_json(tmp_path / "fifo", str)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nowhere", str)


def test_messages_escape_the_control_characters_of_a_file():
    with pytest.raises(DamagedFileError) as damaged:
        check_shape({"\x1b[2J\u202e": 1}, {...: str}, where="FILE")
    assert damaged.value.message == r"FILE is damaged: \x1b[2J\u202e is not text"
