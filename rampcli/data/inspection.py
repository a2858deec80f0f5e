"""Inspects a corpus: summarises and verifies it, in blocks, so that it may have any size."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.checksums import sha256
from rampcli.data.indexed import BLOCK, IndexedFile, bin_of, idx_of, tokenizer_of
from rampcli.data.manifest import read_manifest
from rampcli.data.tokenizer import decode, open_tokenizer, vocab_size_of
from rampcli.errors import UsageError

SAMPLE_TOKENS = 200
LOW_BITS = 16

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """Summary of a corpus.

    Attributes:
        documents: number of documents.
        sequences: number of sequences; Megatron may store several in a document.
        tokens: number of tokens.
        type: type that tokens are stored in.
        is_ours: True if the corpus has a manifest.
        tokenizer: the tokenizer's name or file; None if unknown.
        vocab_size: the tokenizer's vocabulary size; None if unknown.
        eod_token: end-of-document token; None if there is none or it is unknown.
        largest_token: largest token that occurs; None without tokens.
        mean_length: mean length of documents, in tokens.
        median_length: median length of documents, in tokens; the lower one of two.
        longest: length of the longest document, in tokens.
        histogram: (first, last, documents): number of documents with a length of first .. last.
        sample: the first tokens as text, or as numbers if the tokenizer is unknown.
        empty: number of empty texts that were left out; None if unknown.
        skipped: number of bad records that were left out; None if unknown.
    """

    documents: int
    sequences: int
    tokens: int
    type: str
    is_ours: bool
    tokenizer: str | None
    vocab_size: int | None
    eod_token: str | None
    largest_token: int | None
    mean_length: float
    median_length: int
    longest: int
    histogram: list[tuple[int, int, int]]
    sample: str
    empty: int | None
    skipped: int | None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain data for JSON."""
        return asdict(self)


def inspect(prefix: Path) -> Inspection:
    """Summarises a corpus from its index; reads the tokens only if there is no manifest.

    Raises:
        UsageError: the corpus does not exist, or one of its files cannot be read.
    """
    file = IndexedFile.open(prefix)
    manifest = read_manifest(prefix)
    known = manifest or {}
    tokenizer = open_tokenizer(tokenizer_of(prefix)) if tokenizer_of(prefix).exists() else None
    lengths = _Lengths(file)
    first = file.tokens[:SAMPLE_TOKENS].tolist()
    return Inspection(
        documents=file.documents,
        sequences=len(file.lengths),
        tokens=len(file.tokens),
        type=file.tokens.dtype.name,
        is_ours=manifest is not None,
        tokenizer=known.get("tokenizer", tokenizer and str(tokenizer_of(prefix))),
        vocab_size=known.get("vocab_size", tokenizer and vocab_size_of(tokenizer)),
        eod_token=known.get("eod_token"),
        largest_token=known["largest_token"] if "largest_token" in known else _extremes(file)[1],
        mean_length=len(file.tokens) / max(1, file.documents),
        median_length=lengths.median(),
        longest=lengths.longest(),
        histogram=lengths.histogram(),
        sample=" ".join(map(str, first)) if tokenizer is None else decode(tokenizer, first),
        empty=known.get("empty"),
        skipped=known.get("skipped"),
    )


class _Lengths:
    """Statistics of the documents' lengths in tokens."""

    def __init__(self, file: IndexedFile) -> None:
        self.file = file

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yields the lengths in order, in blocks."""
        file = self.file
        for first in range(0, file.documents, BLOCK):
            yield np.diff(file.token_offsets(first, first + BLOCK))

    def longest(self) -> int:
        """Returns the largest length, or 0 without documents."""
        return max((int(block.max()) for block in self.blocks()), default=0)

    def median(self) -> int:
        """Returns the median length, the lower one of two, or 0 without documents.

        Counts the high bits of all lengths first, then the low bits of those with the median's
        high bits.
        """
        half = (self.file.documents + 1) // 2
        if not half:
            return 0
        high, before = _number_at(half, (block >> LOW_BITS for block in self.blocks()))
        low, _ = _number_at(
            half - before,
            (block[block >> LOW_BITS == high] & ((1 << LOW_BITS) - 1) for block in self.blocks()),
        )
        return (high << LOW_BITS) + low

    def histogram(self) -> list[tuple[int, int, int]]:
        """Counts documents by powers of two, from the shortest length to the longest.

        Returns:
            Rows (first, last, documents).
        """
        counts = np.zeros(64, dtype=np.int64)
        for block in self.blocks():
            counts += np.bincount(np.frexp(block.astype(np.float64))[1], minlength=64)
        filled = np.flatnonzero(counts)
        return (
            []
            if not len(filled)
            else [_range(int(bits), int(counts[bits])) for bits in range(filled[0], filled[-1] + 1)]
        )


def _range(bits: int, count: int) -> tuple[int, int, int]:
    return (0, 0, count) if bits == 0 else (1 << (bits - 1), (1 << bits) - 1, count)


def _number_at(rank: int, blocks: Iterator[NDArray[np.int64]]) -> tuple[int, int]:
    """Returns the rank-th smallest of small non-negative numbers, and how many are smaller.

    Ranks count from 1.
    """
    counts = np.zeros(1, dtype=np.int64)
    for block in blocks:
        found = np.bincount(block, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    sums = np.cumsum(counts)
    number = int(np.searchsorted(sums, rank))
    return number, int(sums[number] - counts[number])


def _extremes(file: IndexedFile) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest token, or None twice if there are no tokens."""
    if not len(file.tokens):
        return None, None
    blocks = (file.tokens[first : first + BLOCK] for first in range(0, len(file.tokens), BLOCK))
    found = np.array([(int(block.min()), int(block.max())) for block in blocks])
    return int(found[:, 0].min()), int(found[:, 1].max())


def faults_of(prefix: Path) -> list[str]:
    """Verifies a corpus; returns its faults, one sentence each.

    Raises:
        UsageError: the corpus does not exist.
    """
    for path in (idx_of(prefix), bin_of(prefix)):
        if not path.exists():
            IndexedFile.open(prefix)  # raises the error that names the missing file
    faults: list[str] = []
    manifest = _noting_error(lambda: read_manifest(prefix), faults)
    tokenizer = (
        _noting_error(lambda: open_tokenizer(tokenizer_of(prefix)), faults)
        if tokenizer_of(prefix).exists()
        else None
    )
    file = _noting_error(lambda: IndexedFile.open(prefix), faults)
    if manifest is not None:
        faults += _faults_of_files(prefix, manifest)
    if file is not None:
        faults += _faults_of_tokens(file, manifest or {}, tokenizer)
    return faults


def _noting_error(read: Callable[[], Result], faults: list[str]) -> Result | None:
    """Returns the result of `read`, or None after adding its UsageError to the faults."""
    try:
        return read()
    except UsageError as error:
        faults.append(error.message)
        return None


def _faults_of_files(prefix: Path, manifest: dict[str, Any]) -> Iterator[str]:
    paths = {"bin": bin_of(prefix), "idx": idx_of(prefix), "tokenizer": tokenizer_of(prefix)}
    for name, path in paths.items():
        said = manifest["files"][name]
        if not path.is_file():
            yield f"{path} is missing"
        elif (size := path.stat().st_size) != said["bytes"]:
            yield f"{path} has {size:,} bytes, and the manifest says {said['bytes']:,}"
        elif sha256(path) != said["sha256"]:
            yield f"the SHA-256 checksum of {path} differs from the manifest"


def _faults_of_tokens(
    file: IndexedFile, manifest: dict[str, Any], tokenizer: Tokenizer | None
) -> Iterator[str]:
    for name, found in (("tokens", len(file.tokens)), ("documents", file.documents)):
        if manifest.get(name, found) != found:
            yield f"there are {found:,} {name}, and the manifest says {manifest[name]:,}"
    smallest, largest = _extremes(file)
    vocab_size = manifest.get("vocab_size", None if tokenizer is None else vocab_size_of(tokenizer))
    if smallest is None or largest is None:
        return
    if smallest < 0:
        yield f"there is a negative token, {smallest:,}"
    if vocab_size is not None and largest >= vocab_size:
        yield f"there is a token {largest:,}, and the vocabulary has {vocab_size:,} tokens"
    if manifest.get("largest_token", largest) != largest:
        said = manifest["largest_token"]
        yield f"the largest token is {largest:,}, and the manifest says {said:,}"
