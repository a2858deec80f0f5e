"""Reads headers of safetensors files (format: huggingface.co/docs/safetensors) without torch."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

from rampcli.errors import DamagedFileError, reading
from rampcli.files.guarded_folder import open_to_read
from rampcli.files.records import MOST, parse_json

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""
MAX_DIMENSIONS = 8
METADATA = "__metadata__"
_BITS = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"),
    16: ("U16", "I16", "F16", "BF16"),
    32: ("U32", "I32", "F32"),
    64: ("U64", "I64", "F64", "C64"),
}
BITS_OF_TYPES = {name: bits for bits, names in _BITS.items() for name in names}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: its type, by the format's name.
        begin, end: its first byte in the file, and the byte after its last.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file by name, its metadata, and its size."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str]
    file_bytes: int


def read_header(path: Path) -> Header:
    """Reads the header of a safetensors file and checks it against the size of the file.

    Every byte of the file belongs to the header or to exactly one tensor.

    Raises:
        DamagedFileError: the file cannot be read, or is not a whole safetensors file.
    """
    with reading(path, kind=DamagedFileError), open_to_read(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > min(file_bytes - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise DamagedFileError(
                f"{path} is damaged: its header claims {length:,} bytes, more than the file has"
                " or the format allows"
            )
        content = file.read(length)
    header = parse_json(content, {f"{METADATA}?": {...: str}}, where=f"the header of {path}")
    metadata: dict[str, str] = header.pop(METADATA, {})
    first_byte = LENGTH_BYTES + length
    tensors = {name: _stored(path, name, entry, first_byte) for name, entry in header.items()}
    _check_end_to_end(path, tensors.values(), first_byte=first_byte, file_bytes=file_bytes)
    return Header(tensors, metadata, file_bytes)


def is_counts(value: Any) -> TypeGuard[list[int]]:
    """Returns whether a JSON value is a list of whole numbers from 0.

    Headers hold too many of these lists for `records.check_shape`, which would take seconds.
    """
    return type(value) is list and all(
        type(number) is int and 0 <= number <= MOST for number in value
    )


def _stored(path: Path, name: str, entry: Any, first_byte: int) -> StoredTensor:
    """Returns the tensor of a header's entry; `first_byte` is the one after the header."""
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = BITS_OF_TYPES[dtype]
    except (KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is damaged: {name} is not a tensor of a known type"
        ) from error
    if not (
        is_counts(shape)
        and is_counts(offsets)
        and len(shape) <= MAX_DIMENSIONS
        and len(offsets) == 2
    ):
        raise DamagedFileError(
            f"{path} is damaged: shape or offsets of {name} are not lists of whole numbers from 0"
        )
    begin, end = offsets
    if 8 * (end - begin) != math.prod(shape) * bits:
        raise DamagedFileError(f"{path} is damaged: the offsets of {name} do not fit its shape")
    return StoredTensor(dtype, tuple(shape), first_byte + begin, first_byte + end)


def _check_end_to_end(
    path: Path, tensors: Iterable[StoredTensor], *, first_byte: int, file_bytes: int
) -> None:
    """Checks that tensors fill the file after its header, without gaps or overlaps."""
    end = first_byte
    for stored in sorted(tensors, key=attrgetter("begin", "end")):
        if stored.begin != end:
            raise DamagedFileError(f"{path} is damaged: there are gaps or overlaps between tensors")
        end = stored.end
    if end != file_bytes:
        raise DamagedFileError(
            f"{path} is damaged: its tensors end at byte {end:,}, and it has {file_bytes:,}"
        )
