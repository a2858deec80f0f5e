"""Looking into a corpus: what it holds, and whether anything is wrong with it. In blocks, so that any size fits."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What a corpus holds.

    Attributes:
        documents: how many.
        sequences: how many; Megatron can have several in a document.
        tokens: how many.
        type: that they are stored in.
        is_ours: whether there is a manifest beside it.
        tokenizer: its name or file, or None.
        vocab_size: of the tokenizer, or None.
        eod_token: after each document, or None.
        largest_token: that occurs; None without tokens.
        mean_length: of documents, in tokens.
        median_length: of documents: half of them are not longer.
        longest: document, in tokens.
        histogram: (first, last, documents): how many documents have a length from the first to the last.
        sample: the first tokens as text, or as numbers where nobody knows what they mean.
        empty: texts that were left out; None where nobody knows.
        skipped: bad records that were left out; None where nobody knows.
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
        """The same as JSON has it."""
        return asdict(self)


def inspect(prefix: Path) -> Inspection:
    """Read the index, and the tokens where no manifest says which is the largest.

    Raises:
        UsageError: there is no such corpus, or a file of it cannot be read.
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
    """Of the documents, in tokens."""

    def __init__(self, file: IndexedFile) -> None:
        self.file = file

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """In order, some at a time."""
        file = self.file
        for first in range(0, file.documents, BLOCK):
            yield np.diff(file.first_tokens(first, first + BLOCK))

    def longest(self) -> int:
        """0 without documents."""
        return max((int(block.max()) for block in self.blocks()), default=0)

    def median(self) -> int:
        """The lower one of two. By counting, first the high bits and then the low ones of those that share them."""
        half = (self.file.documents + 1) // 2
        if not half:
            return 0
        high, before = _place(half, (block >> LOW_BITS for block in self.blocks()))
        low, _ = _place(
            half - before,
            (block[block >> LOW_BITS == high] & ((1 << LOW_BITS) - 1) for block in self.blocks()),
        )
        return (high << LOW_BITS) + low

    def histogram(self) -> list[tuple[int, int, int]]:
        """By powers of two: (first, last, documents), from the shortest to the longest that there are."""
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


def _place(rank: int, blocks: Iterator[NDArray[np.int64]]) -> tuple[int, int]:
    """The number at a rank, from 1, among numbers that are small; and how many are smaller."""
    counts = np.zeros(1, dtype=np.int64)
    for block in blocks:
        found = np.bincount(block, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    sums = np.cumsum(counts)
    number = int(np.searchsorted(sums, rank))
    return number, int(sums[number] - counts[number])


def _extremes(file: IndexedFile) -> tuple[int | None, int | None]:
    """The smallest and the largest token; None for both without tokens."""
    if not len(file.tokens):
        return None, None
    blocks = (file.tokens[first : first + BLOCK] for first in range(0, len(file.tokens), BLOCK))
    found = np.array([(int(block.min()), int(block.max())) for block in blocks])
    return int(found[:, 0].min()), int(found[:, 1].max())


def faults_of(prefix: Path) -> list[str]:
    """What is wrong with a corpus, one sentence each; nothing, where nothing is.

    Raises:
        UsageError: there is no such corpus, or it cannot be read at all.
    """
    for path in (idx_of(prefix), bin_of(prefix)):
        if not path.exists():
            IndexedFile.open(prefix)  # which says what is missing
    faults: list[str] = []
    manifest = _tried(lambda: read_manifest(prefix), faults)
    tokenizer = (
        _tried(lambda: open_tokenizer(tokenizer_of(prefix)), faults)
        if tokenizer_of(prefix).exists()
        else None
    )
    file = _tried(lambda: IndexedFile.open(prefix), faults)
    if manifest is not None:
        faults += _faults_of_files(prefix, manifest)
    if file is not None:
        faults += _faults_of_tokens(file, manifest or {}, tokenizer)
    return faults


def _tried(read: Any, faults: list[str]) -> Any:
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
            yield f"{path} has another checksum (SHA-256) than the manifest says"


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
        yield f"there is a token {smallest:,}"
    if vocab_size is not None and largest >= vocab_size:
        yield f"there is a token {largest:,}, and the vocabulary has {vocab_size:,}"
    if manifest.get("largest_token", largest) != largest:
        yield f"the largest token is {largest:,}, and the manifest says {manifest['largest_token']:,}"
