"""Megatron's indexed format: PREFIX.bin holds tokens end to end, PREFIX.idx where sequences and documents of them start.

The index is: MAGIC, a version (u64), the code of the tokens' type (u8), the numbers of sequences and of document boundaries (u64 each);
then the sequences' lengths in tokens (i32), their places in PREFIX.bin in bytes (i64), and at which sequences documents start (i64), with
the number of sequences at the end. Megatron-LM's `megatron/core/datasets/indexed_dataset.py` reads and writes the same.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import UsageError
from rampcli.own_folder import OwnFolder, open_to_read

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
TYPES: dict[int, str] = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""By code; Megatron also has codes for two kinds of floats, which are no tokens."""
MOST_OF_UINT16 = 65_500
"""Vocabularies below it are stored in two bytes, as Megatron has it."""
AS_IT_WAS = "the file as it was; the same command goes on then"
LONGEST_SEQUENCE = 2**31 - 1
LARGEST_VOCABULARY = 2**31
MOST_TOKENS = 2**56
"""In a file. Their place in bytes fits into 64 bits, whatever their type."""
BLOCK = 1 << 17

Places = NDArray[np.int64]
Identity = tuple[int, int, int]
Refuse = Callable[[str], UsageError]


def bin_of(prefix: Path) -> Path:
    """The file of the tokens."""
    return _beside(prefix, ".bin")


def idx_of(prefix: Path) -> Path:
    """The file of the index."""
    return _beside(prefix, ".idx")


def manifest_of(prefix: Path) -> Path:
    """The file that says what the two others hold, where rampcli wrote them."""
    return _beside(prefix, ".json")


def tokenizer_of(prefix: Path) -> Path:
    """The file that says what tokens mean, likewise."""
    return _beside(prefix, ".tokenizer.json")


def _beside(prefix: Path, ending: str) -> Path:
    if not prefix.name:
        raise UsageError(
            f"{prefix} is not the name of a corpus", remedy="PREFIX of PREFIX.bin and PREFIX.idx"
        )
    return prefix.with_name(f"{prefix.name}{ending}")


def token_type(vocab_size: int) -> np.dtype[Any]:
    """The type that tokens of a vocabulary are stored in.

    Raises:
        UsageError: the format has no type for so large a vocabulary.
    """
    if vocab_size > LARGEST_VOCABULARY:
        raise UsageError(
            f"the tokenizer has a token {vocab_size - 1:,}, and the format stores tokens below {LARGEST_VOCABULARY:,}"
        )
    return np.dtype("<u2" if vocab_size < MOST_OF_UINT16 else "<i4")


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A pair of files, mapped into memory. Opening it reads the index and checks every number of it, but no token.

    Attributes:
        prefix: the files' common name.
        tokens: of some integer type, [tokens].
        lengths: of the sequences, in tokens, int32 [sequences].
        pointers: where they start, in bytes, int64 [sequences].
        document_indices: the sequences that documents start at, int64 [documents + 1]; at the end the number of sequences.
        identities: of both files as they were opened, by path.
    """

    prefix: Path
    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    pointers: Places
    document_indices: Places
    identities: dict[str, Identity]

    @classmethod
    def open(cls, prefix: Path) -> "IndexedFile":
        """Open PREFIX.bin and PREFIX.idx.

        Raises:
            UsageError: one of them is missing, cannot be read, is not such a file, or does not belong to the other.
        """
        if prefix.suffix in (".bin", ".idx") and prefix.is_file():
            raise UsageError(
                f"{prefix} is one of two files, and the path is what their names have in common",
                remedy=f"{prefix.stem}",
            )
        bin_path, idx_path = bin_of(prefix), idx_of(prefix)

        def refuse(reason: str) -> UsageError:
            return UsageError(
                f"{idx_path} {reason}",
                remedy="an index that `rampcli data build` or Megatron's preprocessing wrote",
            )

        with _naming(idx_path, missing=f"what `rampcli data build ... --output {prefix}` writes"):
            index, idx_identity = _mapped(idx_path)
        lengths, pointers, document_indices, kind = _parts_of(index, refuse)
        expected = _tokens_of(lengths, pointers, kind.itemsize, refuse) * kind.itemsize
        _check_documents(document_indices, len(lengths), refuse)
        with _naming(bin_path, missing=f"the file that belongs to {idx_path}"):
            content, bin_identity = _mapped(bin_path)
        if len(content) != expected:
            raise UsageError(
                f"{bin_path} has {len(content):,} bytes, and by {idx_path.name} it should have {expected:,}",
                remedy="both files of one build, copied whole",
            )
        identities = {str(bin_path): bin_identity, str(idx_path): idx_identity}
        return cls(prefix, content.view(kind), lengths, pointers, document_indices, identities)

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.document_indices) - 1

    def document_starts(self) -> Places:
        """Where documents start, in bytes; no copy where every sequence is a document."""
        blocks = (
            self.document_indices[first : first + BLOCK + 1]
            for first in range(0, self.documents, BLOCK)
        )
        if self.documents == len(self.pointers) and all(
            (np.diff(block) == 1).all() for block in blocks
        ):
            return self.pointers
        return self.pointers[self.document_indices[self.document_indices < len(self.pointers)]]

    def first_tokens(self, first: int, last: int) -> Places:
        """Where documents start, from one to another with both; for the number of documents, where the last one ends."""
        sequences = self.document_indices[first : last + 1]
        inside = sequences < len(self.pointers)
        places = np.full(len(sequences), len(self.tokens), dtype=np.int64)
        places[inside] = self.pointers[sequences[inside]] // self.tokens.itemsize
        return places

    def check_unchanged(self) -> None:
        """Refuse to read on in files that somebody has replaced or written to.

        Raises:
            UsageError: one is another than was opened, or gone.
        """
        for path, identity in self.identities.items():
            with _naming(path, missing=AS_IT_WAS):
                if _identity(os.stat(path)) != identity:
                    raise UsageError(f"{path} has changed since it was opened", remedy=AS_IT_WAS)


@contextmanager
def _naming(path: Path | str, *, missing: str) -> Iterator[None]:
    """Let an error of the operating system name the file, and say what is expected there."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", remedy=missing
        ) from error


def _mapped(path: Path) -> tuple[NDArray[np.uint8], Identity]:
    """A file as bytes, and its identity. An empty file cannot be mapped."""
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


def _parts_of(
    index: NDArray[np.uint8], refuse: Refuse
) -> tuple[NDArray[np.int32], Places, Places, np.dtype[Any]]:
    """Returns the lengths, pointers and document indices of an index, and the type of its tokens."""
    if len(index) < HEADER.size:
        raise refuse(f"has {len(index)} bytes, too few for an index")
    magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    if magic != MAGIC:
        raise refuse("is no index of Megatron's format")
    if version != VERSION:
        raise refuse(f"is of version {version} of the format, and {VERSION} is read here")
    if code not in TYPES:
        raise refuse(f"says that its tokens are of type {code}, which is no integer")
    places = HEADER.size + 4 * sequences
    documents, end = places + 8 * sequences, places + 8 * sequences + 8 * boundaries
    if len(index) not in (
        end,
        end + sequences,
    ):  # Megatron may add a mode of one byte for each sequence
        raise refuse(
            f"has {len(index):,} bytes, and {sequences:,} sequences and {boundaries:,} boundaries take {end:,}"
        )
    lengths = index[HEADER.size : places].view("<i4")
    pointers, document_indices = (
        index[places:documents].view("<i8"),
        index[documents:end].view("<i8"),
    )
    return lengths, pointers, document_indices, np.dtype(TYPES[code])


def _tokens_of(lengths: NDArray[np.int32], pointers: Places, itemsize: int, refuse: Refuse) -> int:
    """Returns how many tokens the sequences have together. Each has to start where the one before it ends."""
    tokens = 0
    for first in range(0, len(lengths), BLOCK):
        block, found = lengths[first : first + BLOCK], pointers[first : first + BLOCK]
        if block.min() < 0:
            negative = int(np.flatnonzero(block < 0)[0])
            raise refuse(
                f"is damaged: sequence {first + negative:,} has a length of {block[negative]:,}"
            )
        starts = np.cumsum(block, dtype=np.int64)
        in_block = int(starts[-1])
        starts -= block
        starts += tokens
        starts *= itemsize
        if not np.array_equal(found, starts):
            wrong = int(np.flatnonzero(found != starts)[0])
            place = f"starts at byte {found[wrong]:,}, and by the lengths before it at {starts[wrong]:,}"
            raise refuse(f"is damaged: sequence {first + wrong:,} {place}")
        tokens += in_block
        if tokens > MOST_TOKENS:
            raise refuse(f"is damaged: its sequences have more than {MOST_TOKENS:,} tokens")
    return tokens


def _check_documents(document_indices: Places, sequences: int, refuse: Refuse) -> None:
    """Refuse documents that are not all sequences, one after the other."""
    if not len(document_indices) or document_indices[0] != 0 or document_indices[-1] != sequences:
        raise refuse("holds documents that are not its sequences")
    for first in range(0, len(document_indices), BLOCK):
        block = document_indices[first : first + BLOCK + 1]
        if (falls := block[1:] < block[:-1]).any():
            raise refuse(
                f"is damaged: document {first + int(falls.argmax()):,} ends before it starts"
            )


def write_index(path: Path, kind: np.dtype[Any], lengths: Callable[[], Iterator[Places]]) -> None:
    """Write PREFIX.idx, in memory of one block.

    Args:
        path: where; not through a symbolic link.
        kind: the tokens' type.
        lengths: gives the documents' lengths in tokens, block by block, from the first on each time. A document is one sequence, or
            several where it is longer than a sequence can be.
    """
    code = next(code for code, name in TYPES.items() if np.dtype(name) == kind)

    def sequences() -> Iterator[tuple[Places, Places]]:
        """Blocks of the sequences' lengths, and of how many sequences each document has."""
        for block in lengths():
            pieces = np.maximum(1, -(-block // LONGEST_SEQUENCE))
            of_sequences = np.full(pieces.sum(), LONGEST_SEQUENCE, dtype=np.int64)
            of_sequences[np.cumsum(pieces) - 1] = block - (pieces - 1) * LONGEST_SEQUENCE
            yield of_sequences, pieces

    counts = [(len(of_sequences), len(pieces)) for of_sequences, pieces in sequences()]
    total, documents = sum(count[0] for count in counts), sum(count[1] for count in counts)
    with os.fdopen(
        OwnFolder(path.parent).open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb"
    ) as file:
        file.write(HEADER.pack(MAGIC, VERSION, code, total, documents + 1))
        for of_sequences, _ in sequences():
            file.write(of_sequences.astype("<i4").tobytes())
        _write_sums(
            file, (of_sequences * kind.itemsize for of_sequences, _ in sequences()), with_end=False
        )
        _write_sums(file, (pieces for _, pieces in sequences()), with_end=True)
        file.flush()
        os.fsync(file.fileno())


def _write_sums(file: BinaryIO, blocks: Iterator[Places], *, with_end: bool) -> None:
    """Write the sum of all numbers before each number, and at the end that of all."""
    total = 0
    for block in blocks:
        file.write((total + np.cumsum(block) - block).astype("<i8").tobytes())
        total += int(block.sum())
    if with_end:
        file.write(np.int64(total).astype("<i8").tobytes())
