"""Megatron's indexed format: tokens in PREFIX.bin, starts of sequences and documents in PREFIX.idx.

The index holds, in this order:

* MAGIC, a version (u64), the code of the tokens' type (u8), the number of sequences and the number
  of document boundaries (u64 each);
* the length of each sequence in tokens (i32);
* the offset of each sequence in PREFIX.bin, in bytes (i64);
* the first sequence of each document, and after them the number of sequences (i64).

Megatron-LM's `megatron/core/datasets/indexed_dataset.py` reads and writes the same format.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rampcli.data.texts import build_remedy, is_plain_text
from rampcli.errors import DamagedFileError, UsageError, reading
from rampcli.files.guarded_folder import GuardedFolder, open_to_read
from rampcli.files.records import ANY, COUNT, POSITIVE, check_shape, read_json

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
NUMBER_TYPES: dict[int, str] = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Integer types by code. Megatron's codes for floats are left out: tokens are integers."""
MOST_OF_UINT16 = 65_500
"""Smaller vocabularies are stored in two bytes, as in Megatron."""
RESTORE = "restore the file; the same command then resumes"
LONGEST_SEQUENCE = 2**31 - 1
LARGEST_VOCABULARY = 2**31
MOST_TOKENS = 2**56
"""Most tokens in a file. Their offsets in bytes fit into 64 bits, whatever their type."""
ENTRIES_AT_ONCE = 1 << 17
"""Entries that are processed at once."""

Places = NDArray[np.int64]
Identity = tuple[int, int, int]
Refuse = Callable[[str], UsageError]
MANIFEST_FORMAT = 1
MOST_MANIFEST_BYTES = 256 << 20
"""Largest manifest that is read. It names every input, and there may be millions."""
FILE_SHAPE = {"bytes": COUNT, "sha256": str}
BUILD_SETTINGS = {
    "tokenizer": str,
    "tokenizer_sha256": (str, None),
    "eod_option": (str, None),
    "text_key": str,
    "on_bad_record": str,
}
"""Shape of what determines a build besides its inputs, for `rampcli.files.records.check_shape`."""
MANIFEST_SHAPE = {
    **BUILD_SETTINGS,
    **dict.fromkeys(("tokens", "documents", "empty", "skipped", "text_bytes"), COUNT),
    "largest_token": (COUNT, None),
    "vocab_size": POSITIVE,
    "eod": (COUNT, None),
    "eod_token": (str, None),
    "inputs": ANY,
    "files": {"bin": FILE_SHAPE, "idx": FILE_SHAPE, "tokenizer": FILE_SHAPE},
}
"""Shape of a manifest."""


def bin_of(prefix: Path) -> Path:
    """Returns the path of the tokens."""
    return _with_ending(prefix, ".bin")


def idx_of(prefix: Path) -> Path:
    """Returns the path of the index."""
    return _with_ending(prefix, ".idx")


def manifest_of(prefix: Path) -> Path:
    """Returns the path of the manifest; only corpora that rampcli built have one."""
    return _with_ending(prefix, ".json")


def tokenizer_of(prefix: Path) -> Path:
    """Returns the path of the tokenizer; only corpora that rampcli built have one."""
    return _with_ending(prefix, ".tokenizer.json")


def _with_ending(prefix: Path, ending: str) -> Path:
    if not prefix.name:
        raise UsageError(
            f"{prefix} is not the name of a corpus",
            remedy="PREFIX, the common name of PREFIX.bin and PREFIX.idx",
        )
    return prefix.with_name(f"{prefix.name}{ending}")


def token_type(vocab_size: int) -> np.dtype[Any]:
    """Returns the type in which the tokens of a vocabulary are stored.

    Raises:
        UsageError: the vocabulary is too large for the format.
    """
    if vocab_size > LARGEST_VOCABULARY:
        raise UsageError(
            f"token {vocab_size - 1:,} of the tokenizer does not fit: the format stores tokens"
            f" below {LARGEST_VOCABULARY:,}"
        )
    return np.dtype("<u2" if vocab_size < MOST_OF_UINT16 else "<i4")


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """PREFIX.bin and PREFIX.idx, memory-mapped.

    Opening them reads the index and checks every number in it. Tokens are not read.

    Attributes:
        tokens: tokens of any integer type, [tokens].
        lengths: length of each sequence in tokens, int32 [sequences].
        pointers: offset of each sequence in bytes, int64 [sequences].
        document_indices: first sequence of each document, then the number of sequences,
            int64 [documents + 1].
        identities: inode, size and modification time of both files when they were opened, by path.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    pointers: Places
    document_indices: Places
    identities: dict[str, Identity]

    @classmethod
    def open(cls, prefix: Path) -> "IndexedFile":
        """Opens PREFIX.bin and PREFIX.idx.

        Raises:
            UsageError: a file is missing, cannot be read or is not of this format, or the two do
                not belong together.
        """
        if prefix.suffix in (".bin", ".idx") and prefix.is_file():
            raise UsageError(
                f"name a corpus by PREFIX, not by one of its two files: {prefix}",
                remedy=str(prefix.with_suffix("")),
            )
        bin_path, idx_path = bin_of(prefix), idx_of(prefix)
        if prefix.is_file() and not idx_path.exists():
            raise UsageError(
                f"{prefix} is a single file; an indexed corpus is PREFIX.bin and PREFIX.idx",
                remedy=build_remedy(prefix) + ("; or data=text" if is_plain_text(prefix) else ""),
            )

        def refuse(reason: str) -> UsageError:
            return UsageError(
                f"{idx_path} {reason}",
                remedy="an index that `rampcli data build` or Megatron's preprocessing wrote",
            )

        build = f"write it with `rampcli data build ... --output {prefix}`"
        with reading(idx_path, remedy=build):
            index, idx_identity = _map(idx_path)
        lengths, pointers, document_indices, kind = _parse(index, refuse)
        expected = _count_tokens(lengths, pointers, kind.itemsize, refuse) * kind.itemsize
        _check_documents(document_indices, len(lengths), refuse)
        with reading(bin_path, remedy=f"restore the tokens that {idx_path} describes"):
            content, bin_identity = _map(bin_path)
        if len(content) != expected:
            raise UsageError(
                f"{bin_path} has {len(content):,} bytes, but {idx_path.name} describes"
                f" {expected:,}",
                remedy="both files of one build, copied completely",
            )
        identities = {str(bin_path): bin_identity, str(idx_path): idx_identity}
        return cls(content.view(kind), lengths, pointers, document_indices, identities)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.document_indices) - 1

    def document_starts(self) -> Places:
        """Returns the offset of each document in bytes.

        They are a view of the mapped index if each document is one sequence, and copied otherwise.
        """
        blocks = (
            self.document_indices[first : first + ENTRIES_AT_ONCE + 1]
            for first in range(0, self.documents, ENTRIES_AT_ONCE)
        )
        if self.documents == len(self.pointers) and all(
            (np.diff(block) == 1).all() for block in blocks
        ):
            return self.pointers
        return self.pointers[self.document_indices[self.document_indices < len(self.pointers)]]

    def token_offsets(self, first: int, last: int) -> Places:
        """Returns the offset, in tokens, of each of the documents first .. last, both included.

        For `last` = number of documents, the last entry is the end of the tokens.
        """
        sequences = self.document_indices[first : last + 1]
        inside = sequences < len(self.pointers)
        places = np.full(len(sequences), len(self.tokens), dtype=np.int64)
        places[inside] = self.pointers[sequences[inside]] // self.tokens.itemsize
        return places

    def check_unchanged(self) -> None:
        """Checks that neither file has been replaced, written to or deleted.

        Raises:
            UsageError: a file has changed since it was opened.
        """
        with reading(next(iter(self.identities)), remedy=RESTORE):
            for path, identity in self.identities.items():
                if _identity(os.stat(path)) != identity:
                    raise UsageError(f"{path} has changed since it was opened", remedy=RESTORE)


def _map(path: Path) -> tuple[NDArray[np.uint8], Identity]:
    """Maps a file as bytes; returns it with its identity. An empty file cannot be mapped."""
    with open_to_read(path) as file:
        found = os.fstat(file.fileno())
        content = (
            np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)
            if found.st_size
            else np.empty(0, dtype=np.uint8)
        )
    return content, _identity(found)


def _identity(found: os.stat_result) -> Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _parse(
    index: NDArray[np.uint8], refuse: Refuse
) -> tuple[NDArray[np.int32], Places, Places, np.dtype[Any]]:
    if len(index) < HEADER.size:
        raise refuse(f"has {len(index)} bytes, too few for an index")
    magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    if magic != MAGIC:
        raise refuse("is not an index in Megatron's format")
    if version != VERSION:
        raise refuse(f"has version {version} of the format; supported: {VERSION}")
    if code not in NUMBER_TYPES:
        raise refuse(f"has tokens of type {code}, which is not an integer type")
    pointers_at = HEADER.size + 4 * sequences
    documents_at = pointers_at + 8 * sequences
    end = documents_at + 8 * boundaries
    # Megatron may append a mode of one byte for each sequence.
    if len(index) not in (end, end + sequences):
        raise refuse(
            f"has {len(index):,} bytes instead of {end:,} (sequences: {sequences:,}, document"
            f" boundaries: {boundaries:,})"
        )
    lengths = index[HEADER.size : pointers_at].view("<i4")
    pointers = index[pointers_at:documents_at].view("<i8")
    document_indices = index[documents_at:end].view("<i8")
    return lengths, pointers, document_indices, np.dtype(NUMBER_TYPES[code])


def _count_tokens(
    lengths: NDArray[np.int32], pointers: Places, itemsize: int, refuse: Refuse
) -> int:
    """Returns the number of tokens, checking that the sequences are contiguous."""
    tokens = 0
    for first in range(0, len(lengths), ENTRIES_AT_ONCE):
        block, found = (
            lengths[first : first + ENTRIES_AT_ONCE],
            pointers[first : first + ENTRIES_AT_ONCE],
        )
        if block.min() < 0:
            negative = int(np.flatnonzero(block < 0)[0])
            raise refuse(
                f"is damaged: sequence {first + negative:,} has length {block[negative]:,}"
            )
        starts = np.cumsum(block, dtype=np.int64)
        in_block = int(starts[-1])
        starts -= block
        starts += tokens
        starts *= itemsize
        if not np.array_equal(found, starts):
            wrong = int(np.flatnonzero(found != starts)[0])
            raise refuse(
                f"is damaged: sequence {first + wrong:,} starts at byte {found[wrong]:,} instead of"
                f" {starts[wrong]:,}"
            )
        tokens += in_block
        if tokens > MOST_TOKENS:
            raise refuse(f"is damaged: its sequences have more than {MOST_TOKENS:,} tokens")
    return tokens


def _check_documents(document_indices: Places, sequences: int, refuse: Refuse) -> None:
    """Checks that the documents are consecutive and cover all sequences."""
    if not len(document_indices) or document_indices[0] != 0 or document_indices[-1] != sequences:
        raise refuse("is damaged: its documents do not cover its sequences")
    for first in range(0, len(document_indices), ENTRIES_AT_ONCE):
        block = document_indices[first : first + ENTRIES_AT_ONCE + 1]
        if (falls := block[1:] < block[:-1]).any():
            raise refuse(
                f"is damaged: document {first + int(falls.argmax()):,} ends before it starts"
            )


def write_index(path: Path, kind: np.dtype[Any], lengths: Callable[[], Iterator[Places]]) -> None:
    """Writes PREFIX.idx, holding one block of it in memory at a time.

    A document becomes one sequence, or several if it is longer than LONGEST_SEQUENCE.

    Args:
        path: path of the index; must not lead through a symbolic link.
        lengths: returns a new iterator over the documents' lengths in tokens, in blocks.
    """
    code = next(code for code, name in NUMBER_TYPES.items() if np.dtype(name) == kind)

    def sequences() -> Iterator[tuple[Places, Places]]:
        """Yields blocks: the sequences' lengths, and the number of sequences of each document."""
        for block in lengths():
            pieces = np.maximum(1, -(-block // LONGEST_SEQUENCE))
            sequence_lengths = np.full(pieces.sum(), LONGEST_SEQUENCE, dtype=np.int64)
            sequence_lengths[np.cumsum(pieces) - 1] = block - (pieces - 1) * LONGEST_SEQUENCE
            yield sequence_lengths, pieces

    counts = [(len(sequence_lengths), len(pieces)) for sequence_lengths, pieces in sequences()]
    total, documents = sum(count[0] for count in counts), sum(count[1] for count in counts)
    with os.fdopen(
        GuardedFolder(path.parent).open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb"
    ) as file:
        file.write(HEADER.pack(MAGIC, VERSION, code, total, documents + 1))
        for sequence_lengths, _ in sequences():
            file.write(sequence_lengths.astype("<i4").tobytes())
        _write_sums(
            file,
            (sequence_lengths * kind.itemsize for sequence_lengths, _ in sequences()),
            with_end=False,
        )
        _write_sums(file, (pieces for _, pieces in sequences()), with_end=True)
        file.flush()
        os.fsync(file.fileno())


def _write_sums(file: BinaryIO, blocks: Iterator[Places], *, with_end: bool) -> None:
    """Writes the exclusive cumulative sum of all numbers; `with_end` appends the total."""
    total = 0
    for block in blocks:
        file.write((total + np.cumsum(block) - block).astype("<i8").tobytes())
        total += int(block.sum())
    if with_end:
        file.write(np.int64(total).astype("<i8").tobytes())


def read_manifest(prefix: Path) -> dict[str, Any] | None:
    """Returns the contents of PREFIX.json, or None if it does not exist: Megatron writes none.

    Raises:
        UsageError: the file cannot be read, or is not a manifest of this format.
    """
    path = manifest_of(prefix)
    remedy = "restore the manifest that `rampcli data build` wrote, or delete the file"
    try:
        manifest: dict[str, Any] = read_json(
            path, {"format": COUNT}, most_bytes=MOST_MANIFEST_BYTES
        )
        if manifest["format"] != MANIFEST_FORMAT:
            raise UsageError(f"{path} is not a manifest of format {MANIFEST_FORMAT}", remedy=remedy)
        check_shape(manifest, MANIFEST_SHAPE, where=str(path))
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        raise UsageError(error.message, remedy=remedy) from error
    return manifest
