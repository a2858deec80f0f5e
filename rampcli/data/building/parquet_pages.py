"""Reads how large the pages of a Parquet file become, before any of them is decoded.

pyarrow decompresses a page whole, and does not tell its size. The sizes stand in structs of
Thrift's compact protocol: in the header of each page, which the metadata at the file's end lead to
(https://github.com/apache/parquet-format, README and parquet.thrift).
"""

import io
import os
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rampcli.files.guarded_folder import open_to_read

ROW_GROUPS = 4
"""Field of the metadata."""
COLUMNS_FIELD = 1
"""Field of a row group."""
METADATA_FIELD = 3
"""Field of a column in a row group."""
NAMES_FIELD, PACKED_BYTES, FIRST_PAGE, DICTIONARY_PAGE = 3, 7, 9, 11
"""Fields of a column's metadata."""
PAGE_BYTES_FIELD, PACKED_PAGE_BYTES = 2, 3
"""Fields of a page's header: sizes of the page without its header."""
DAMAGED = "its metadata or the header of a page is damaged"
TAIL_BYTES = 8
"""Length of the metadata in four bytes, and PAR1."""
MOST_NESTED = 16
LONGEST_BINARY_BYTES = 100 << 20
"""Longest name or other binary value in a struct, as in pyarrow."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_NUMBERS, _LISTS = (4, 5, 6), (9, 10)
"""Types of Thrift."""
T = TypeVar("T")


def largest_page_bytes(path: Path, column: str) -> list[int]:
    """Returns the size of a column's largest page in each row group, decompressed.

    Raises:
        OSError: the file cannot be read, or is damaged.
    """
    with open_to_read(path) as file:
        file.seek(-TAIL_BYTES, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-TAIL_BYTES - length, os.SEEK_END)
        metadata = _read_struct(io.BytesIO(file.read(length)))
        return [
            max((_largest_page(file, one) for one in _columns(group, column)), default=0)
            for group in _field(metadata, ROW_GROUPS, list)
        ]


def _columns(group: Any, column: str) -> list[dict[int, Any]]:
    found = [_field(one, METADATA_FIELD, dict) for one in _field(group, COLUMNS_FIELD, list)]
    return [one for one in found if _field(one, NAMES_FIELD, list) == [column.encode()]]


def _largest_page(file: BinaryIO, column: dict[int, Any]) -> int:
    """Returns the size of the largest page of a column in a row group, decompressed."""
    start = _field(column, FIRST_PAGE, int)
    if DICTIONARY_PAGE in column:
        start = min(start, _field(column, DICTIONARY_PAGE, int))
    largest, end = 0, start + _field(column, PACKED_BYTES, int)
    file.seek(max(0, start))
    while file.tell() < end:
        header = _read_struct(file)
        largest = max(largest, _field(header, PAGE_BYTES_FIELD, int))
        file.seek(max(0, _field(header, PACKED_PAGE_BYTES, int)), os.SEEK_CUR)
    return largest


def _field(struct: Any, number: int, kind: type[T]) -> T:
    found = struct.get(number) if isinstance(struct, dict) else None
    if not isinstance(found, kind):
        raise OSError(DAMAGED)
    return found


def _read_struct(file: BinaryIO, depth: int = 0) -> dict[int, Any]:
    fields, number = dict[int, Any](), 0
    while head := _read_byte(file):
        number = number + (head >> 4) if head >> 4 else _read_signed(file)
        kind = head & 15
        # The type of a boolean field is its value.
        fields[number] = (
            kind == _TRUE if kind in (_TRUE, _FALSE) else _read_value(file, kind, depth + 1)
        )
    return fields


def _read_value(file: BinaryIO, kind: int, depth: int) -> Any:
    if kind in _NUMBERS:
        return _read_signed(file)
    if kind == _BINARY:
        return _read_binary(file, _read_number(file))
    if kind in (_TRUE, _FALSE, _BYTE):
        return _read_byte(file)
    if kind == _DOUBLE:
        return _read_binary(file, 8)
    if kind in _LISTS and depth <= MOST_NESTED:
        head = _read_byte(file)
        length = _read_number(file) if head >> 4 == 15 else head >> 4
        return [_read_value(file, head & 15, depth + 1) for _ in range(length)]
    if kind == _STRUCT and depth <= MOST_NESTED:
        return _read_struct(file, depth)
    raise OSError(DAMAGED)


def _read_signed(file: BinaryIO) -> int:
    """Reads a number that zigzag encoding has made positive."""
    number = _read_number(file)
    return number >> 1 ^ -(number & 1)


def _read_number(file: BinaryIO) -> int:
    """Reads a number of at most 63 bits, seven bits per byte, the low ones first."""
    number = 0
    for shift in range(0, 63, 7):
        byte = _read_byte(file)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise OSError(DAMAGED)


def _read_byte(file: BinaryIO) -> int:
    return _read_binary(file, 1)[0]


def _read_binary(file: BinaryIO, length: int) -> bytes:
    content = file.read(min(length, LONGEST_BINARY_BYTES))
    if len(content) < length:
        raise OSError(DAMAGED)
    return content
