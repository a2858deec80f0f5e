"""What a corpus is to the loader: windows of tokens, and their labels."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

IGNORED = -100
"""The label of a token that the loss leaves out, as torch's cross entropy has it."""


class Corpus(Protocol):
    """Windows of `sequence_length` tokens, in no order; `fingerprint` tells one corpus from another."""

    @property
    def windows(self) -> int: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def read(self, windows: NDArray[np.int64]) -> tuple[Tokens, Tokens]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class DocumentCorpus:
    """Documents of bytes laid end to end and cut into windows; the first token of a document is not asked for.

    `data` is uint8 [tokens]; `starts` marks where documents start, bool [tokens].
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.bool_]
    sequence_length: int

    @property
    def windows(self) -> int:
        """Whole windows, each with one more token for the last label."""
        return max(0, (len(self.data) - 1) // self.sequence_length)

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens and of how they are cut."""
        return hashlib.sha256(f"{self.sequence_length}:".encode() + self.data.tobytes() + np.packbits(self.starts).tobytes()).hexdigest()

    def read(self, windows: NDArray[np.int64]) -> tuple[Tokens, Tokens]:
        """Tokens and labels, each [len(windows), sequence_length]; labels that start a document are IGNORED."""
        places = windows[:, None] * self.sequence_length + np.arange(self.sequence_length)
        labels = self.data[places + 1].astype(np.int64)
        labels[self.starts[places + 1]] = IGNORED
        return self.data[places].astype(np.int64), labels

    @classmethod
    def of(cls, documents: list[bytes], *, sequence_length: int) -> "DocumentCorpus":
        """Lay documents end to end."""
        documents = [document for document in documents if document]
        starts = np.zeros(sum(map(len, documents)), dtype=np.bool_)
        starts[np.cumsum([0, *map(len, documents)])[:-1]] = True
        return cls(data=np.frombuffer(b"".join(documents), dtype=np.uint8), starts=starts, sequence_length=sequence_length)


@dataclass(frozen=True, slots=True)
class MockCorpus:
    """Random tokens: window `w` is a pure function of the seed and `w`. Needs no files, as NeMo's MockDataModule."""

    vocab_size: int
    sequence_length: int
    seed: int
    windows: int = 2**40

    @property
    def fingerprint(self) -> str:
        """What determines the tokens."""
        return f"mock {self.seed} {self.vocab_size} {self.sequence_length}"

    def read(self, windows: NDArray[np.int64]) -> tuple[Tokens, Tokens]:
        """Tokens and labels, each [len(windows), sequence_length]."""
        keys = [np.array([self.seed, window], dtype=np.uint64) for window in windows]
        generators = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
        tokens = np.stack([generator.integers(self.vocab_size, size=self.sequence_length + 1) for generator in generators])
        return tokens[:, :-1], tokens[:, 1:]
