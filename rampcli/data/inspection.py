"""Inspects a corpus: summarises and verifies it, in blocks, so that it may have any size."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data.indexed import (
    ENTRIES_AT_ONCE,
    IndexedFile,
    bin_of,
    idx_of,
    read_manifest,
    tokenizer_of,
)
from rampcli.data.tokenizer import decode, open_tokenizer, vocab_size_of
from rampcli.errors import ErrorReport
from rampcli.files.checksums import sha256

SAMPLE_TOKENS = 200


def inspect(prefix: Path) -> dict[str, Any]:
    """Summarises a corpus from its index; reads the tokens only if there is no manifest.

    Returns:
        What `rampcli data inspect --json` prints. Lengths are those of documents, in tokens. Facts
        that only a manifest or a tokenizer tells are None without it.

    Raises:
        UsageError: the corpus does not exist, or one of its files cannot be read.
    """
    file = IndexedFile.open(prefix)
    manifest = read_manifest(prefix)
    known = manifest or {}
    tokenizer = open_tokenizer(tokenizer_of(prefix)) if tokenizer_of(prefix).exists() else None
    lengths, counts = _count_lengths(file)
    first, median = file.tokens[:SAMPLE_TOKENS].tolist(), 0
    if len(lengths):  # the lower one of two
        half = (counts.sum() + 1) // 2
        median = int(lengths[np.searchsorted(np.cumsum(counts), half)])
    return {
        "documents": file.documents,
        "sequences": len(file.lengths),
        "tokens": len(file.tokens),
        "type": file.tokens.dtype.name,
        "is_ours": manifest is not None,
        "tokenizer": known.get("tokenizer", tokenizer and str(tokenizer_of(prefix))),
        "vocab_size": known.get("vocab_size", tokenizer and vocab_size_of(tokenizer)),
        "eod_token": known.get("eod_token"),
        "largest_token": known["largest_token"] if "largest_token" in known else _extremes(file)[1],
        "mean_length": len(file.tokens) / max(1, file.documents),
        "median_length": median,
        "longest": max(lengths.tolist(), default=0),
        "histogram": _histogram(lengths, counts) if len(lengths) else [],
        "sample": " ".join(map(str, first)) if tokenizer is None else decode(tokenizer, first),
        "empty": known.get("empty"),
        "skipped": known.get("skipped"),
    }


def _count_lengths(file: IndexedFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the lengths of documents in tokens, ascending, and how many documents have each.

    There are few different lengths: at most the square root of twice the number of tokens.
    """
    counts: Counter[int] = Counter()
    for first in range(0, file.documents, ENTRIES_AT_ONCE):
        block = np.diff(file.token_offsets(first, first + ENTRIES_AT_ONCE))
        lengths, found = np.unique(block, return_counts=True)
        counts.update(dict(zip(lengths.tolist(), found.tolist(), strict=True)))
    ordered = sorted(counts)
    return np.array(ordered), np.array([counts[length] for length in ordered])


def _histogram(lengths: NDArray[np.int64], counts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Returns rows (first, last, documents) by powers of two, from the shortest length on."""
    bits = np.frexp(lengths.astype(np.float64))[1]
    totals = np.bincount(bits, weights=counts).astype(np.int64).tolist()
    return [
        (1 << power >> 1, (1 << power) - 1, totals[power]) for power in range(bits[0], bits[-1] + 1)
    ]


def _extremes(file: IndexedFile) -> tuple[int | None, int | None]:
    """Returns the smallest and the largest token, or None twice if there are no tokens."""
    if not len(file.tokens):
        return None, None
    blocks = (
        file.tokens[first : first + ENTRIES_AT_ONCE]
        for first in range(0, len(file.tokens), ENTRIES_AT_ONCE)
    )
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
    report, manifest, tokenizer, file = ErrorReport(), None, None, None
    with report.noting():
        manifest = read_manifest(prefix)
    with report.noting():
        if tokenizer_of(prefix).exists():
            tokenizer = open_tokenizer(tokenizer_of(prefix))
    with report.noting():
        file = IndexedFile.open(prefix)
    faults = [error.message for error in report.errors]
    if manifest is not None:
        faults += _faults_of_files(prefix, manifest)
    if file is not None:
        faults += _faults_of_tokens(file, manifest or {}, tokenizer)
    return faults


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
