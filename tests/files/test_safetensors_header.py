import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rampcli.errors import DamagedFileError
from rampcli.files.safetensors_header import StoredTensor, read_header

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path: Path, header: object, data: int = 24, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(
        (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)
    )
    return path


def test_what_the_safetensors_library_writes_is_read(tmp_path):
    tensors = {
        "a": np.zeros((2, 3), np.float32),
        "b": np.zeros((), np.int64),
        "empty": np.zeros((0, 5), np.float16),
        "c": np.zeros(3, bool),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "np"})
    header = read_header(tmp_path / "x.safetensors")
    assert header.metadata == {"format": "np"}
    assert header.file_bytes == (tmp_path / "x.safetensors").stat().st_size
    assert {
        name: (stored.shape, stored.end - stored.begin) for name, stored in header.tensors.items()
    } == {name: (tensor.shape, tensor.nbytes) for name, tensor in tensors.items()}


def test_a_header_is_read_as_written(tmp_path):
    stored = read_header(write(tmp_path / "x", {"a": ENTRY})).tensors["a"]
    begin = (tmp_path / "x").stat().st_size - 24
    assert stored == StoredTensor("F32", (2, 3), begin, begin + 24)


WRONG = {
    "shorter than the length of its header": b"",
    "a header beyond its end": {"length": 1000},
    "a header of 2^64 bytes": {"length": 2**64 - 1},
    "a tensor beyond its end": {"data": 20},
    "bytes after the last tensor": {"data": 25},
    "no tensor, but bytes": {"header": {}},
    "a gap before the first tensor": {
        "header": {"a": ENTRY | {"data_offsets": [4, 28]}},
        "data": 28,
    },
    "two tensors at one place": {"header": {"a": ENTRY, "b": ENTRY}},
    "tensors that overlap": {
        "header": {"a": ENTRY, "b": ENTRY | {"data_offsets": [12, 36]}},
        "data": 36,
    },
    "a gap between tensors": {
        "header": {"a": ENTRY, "b": ENTRY | {"data_offsets": [25, 49]}},
        "data": 49,
    },
    "offsets that do not fit the shape": {"header": {"a": ENTRY | {"shape": [2, 4]}}},
    "offsets backwards": {"header": {"a": ENTRY | {"data_offsets": [24, 0]}}},
    "three offsets": {"header": {"a": ENTRY | {"data_offsets": [0, 24, 24]}}},
    "negative sizes": {"header": {"a": ENTRY | {"shape": [-2, -3]}}},
    "sizes that are booleans": {"header": {"a": ENTRY | {"shape": [True, 6]}}},
    "sizes that are fractions": {"header": {"a": ENTRY | {"shape": [2.0, 3]}}},
    "sizes beyond the limit": {"header": {"a": ENTRY | {"shape": [10**30]}}},
    "a thousand dimensions": {"header": {"a": ENTRY | {"shape": [2, 3, *[1] * 1000]}}},
    "an unknown type": {"header": {"a": ENTRY | {"dtype": "F33"}}},
    "a type that is a list": {"header": {"a": ENTRY | {"dtype": []}}},
    "a tensor that is a number": {"header": {"a": 1}},
    "a tensor without a shape": {"header": {"a": {"dtype": "F32", "data_offsets": [0, 24]}}},
    "metadata that is not text": {"header": {"a": ENTRY, "__metadata__": {"format": 1}}},
    "a list": {"header": [ENTRY]},
    "not JSON": {"header": b"{"},
    "not UTF-8": {"header": b'{"\xff": 1}'},
    "endless nesting": {"header": b"[" * 100_000},
    "numbers of thousands of digits": {"header": b'{"a": 1' + b"0" * 10_000 + b"}"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_invalid_file_is_one_error(tmp_path, wrong):
    path = tmp_path / "x.safetensors"
    if isinstance(wrong, bytes):
        path.write_bytes(wrong)
    else:
        write(path, **({"header": {"a": ENTRY}} | wrong))
    with pytest.raises(DamagedFileError):
        read_header(path)


TWO = {"a": ENTRY, "b": ENTRY | {"data_offsets": [24, 48]}, "__metadata__": {"x": "y"}}
BYTES = st.sampled_from(b'0123456789[]{},:"-eE. ') | st.integers(0, 255)


@given(changes=st.lists(st.tuples(st.integers(0, 10_000), BYTES), min_size=1, max_size=3))
def test_a_changed_file_is_read_if_the_safetensors_library_reads_it(changes, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("files") / "x.safetensors", TWO, 48)
    content = bytearray(path.read_bytes())
    for place, byte in changes:
        content[place % (len(content) - 48)] = byte
    path.write_bytes(content)
    try:
        ours = set(read_header(path).tensors)
    except DamagedFileError:
        ours = None
    try:
        with safe_open(path, framework="np") as opened:
            theirs = set(opened.keys())
    except SafetensorError:
        theirs = None
    assert ours == theirs


@pytest.mark.parametrize("kind", ["fifo", "folder", "nothing", "device"])
def test_a_file_that_is_not_regular_is_one_error_without_waiting(tmp_path, kind):
    path = tmp_path / "x.safetensors"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(DamagedFileError, match="cannot read"):
        read_header(Path("/dev/zero") if kind == "device" else path)
