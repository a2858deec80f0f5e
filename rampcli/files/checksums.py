"""Checksums of files: SHA-256, and a faster one that detects damage, but not tampering."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rampcli.files.guarded_folder import open_to_read

SUMMED_PIECE_BYTES = 8 * 2**20
PAGE_BYTES = 4096


class PageSums:
    """The SHA-256 of sums, computed about as fast as memory is read.

    A file is added in pieces of `SUMMED_PIECE_BYTES`, the last one shorter.

    Each piece, padded with zeros to whole pages of 4096 bytes, is a table of little-endian 64-bit
    integers with one page per row. The SHA-256 is the one of its column sums and row sums, modulo
    2^64. Damage within one page of a piece always changes it, and so does a missing page. Swapped
    pages change it unless their sums are equal.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, piece: "memoryview | bytes") -> None:
        """Adds the next piece."""
        import numpy as np  # most commands do without it

        if len(piece) % PAGE_BYTES:
            piece = bytes(piece).ljust(-(-len(piece) // PAGE_BYTES) * PAGE_BYTES, b"\0")
        table = np.frombuffer(piece, dtype="<u8").reshape(-1, PAGE_BYTES // 8)
        for axis in (0, 1):
            self._digest.update(np.add.reduce(table, axis=axis).tobytes())

    def hexdigest(self) -> str:
        """Returns the checksum in hexadecimal."""
        return self._digest.hexdigest()


def page_sums(content: bytes) -> str:
    """Returns the `PageSums` of a file's content."""
    sums = PageSums()
    for begin in range(0, len(content), SUMMED_PIECE_BYTES):
        sums.update(content[begin : begin + SUMMED_PIECE_BYTES])
    return sums.hexdigest()


def expected_checksum(facts: Mapping[str, Any]) -> "tuple[PageSums | hashlib._Hash, str]":
    """Returns an empty checksum of the kind that a manifest gives for a file, and the value.

    Manifests of the first version give SHA-256.
    """
    return (PageSums(), facts["sums"]) if "sums" in facts else (hashlib.sha256(), facts["sha256"])


def checksum_fits(path: Path, facts: Mapping[str, Any]) -> bool:
    """Returns whether a file has the checksum that a manifest gives for it."""
    checksum, expected = expected_checksum(facts)
    with open_to_read(path) as file:
        while piece := file.read(SUMMED_PIECE_BYTES):
            checksum.update(piece)
    return checksum.hexdigest() == expected


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
