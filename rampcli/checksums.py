"""Checksums of files: fast ones against damage, for checkpoints, and SHA-256."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rampcli.own_folder import open_to_read

PIECE_BYTES = 8 * 2**20
PAGE_BYTES = 4096


class PageSums:
    """A checksum at the speed of memory, against damage rather than malice: the SHA-256 of sums.

    Each piece of `PIECE_BYTES`, the last one filled up with zeros to whole pages of 4096 bytes, is a table of 64-bit integers, little end
    first, with a page in each row. Summed, modulo 2^64, are its columns and its rows. So damage within one page of a piece is always
    found, and so are pages that are lost or in each other's place.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, piece: "memoryview | bytes") -> None:
        """Count in the next piece."""
        import numpy as np  # here, because most commands need none of it

        if len(piece) % PAGE_BYTES:
            piece = bytes(piece).ljust(-(-len(piece) // PAGE_BYTES) * PAGE_BYTES, b"\0")
        table = np.frombuffer(piece, dtype="<u8").reshape(-1, PAGE_BYTES // 8)
        for axis in (0, 1):
            self._digest.update(np.add.reduce(table, axis=axis).tobytes())

    def hexdigest(self) -> str:
        """The checksum, in hexadecimal."""
        return self._digest.hexdigest()


def page_sums(content: bytes) -> str:
    """`PageSums` of a whole file."""
    sums = PageSums()
    for begin in range(0, len(content), PIECE_BYTES):
        sums.update(content[begin : begin + PIECE_BYTES])
    return sums.hexdigest()


class Checksum(Protocol):
    """Counts in pieces of `PIECE_BYTES`, the last one shorter."""

    def update(self, piece: Any, /) -> object:
        """Count in the next piece."""

    def hexdigest(self) -> str:
        """The checksum, in hexadecimal."""


def expected_checksum(facts: Mapping[str, Any]) -> tuple[Checksum, str]:
    """What makes the checksum that a manifest gives a file, and that checksum. The first manifests have SHA-256."""
    return (PageSums(), facts["sums"]) if "sums" in facts else (hashlib.sha256(), facts["sha256"])


def checksum_fits(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a file has the checksum that a manifest gives it."""
    checksum, expected = expected_checksum(facts)
    with open_to_read(path) as file:
        while piece := file.read(PIECE_BYTES):
            checksum.update(piece)
    return checksum.hexdigest() == expected


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_to_read(path) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
