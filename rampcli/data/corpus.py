"""Corpora: windows of tokens with their labels."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import UsageError
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig

Tokens = NDArray[np.int64]

IGNORED = -100
"""Label of a token that the loss ignores; torch's cross entropy uses the same value."""
PADDING = 0
"""Token that fills up a padded sample; its labels are IGNORED."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Contents of some samples, in contiguous arrays, which are copied to a GPU as they are.

    Attributes:
        tokens: int64 [samples, sequence_length].
        labels: same shape: the next token, or IGNORED.
        positions: same shape: position of each token within its document, counted from the start of
            the sample if the document began before it; None without a document mask.
        valid_tokens: number of labels that are not IGNORED.

    Args:
        valid: `valid_tokens`, if the caller knows it; labels are then not counted.
    """

    tokens: Tokens
    labels: Tokens
    positions: Tokens | None = None
    valid: InitVar[int | None] = None
    valid_tokens: int = field(init=False)

    def __post_init__(self, valid: int | None) -> None:
        if valid is None:  # counted at once, while the labels are in the processor's cache
            valid = int(np.count_nonzero(self.labels != IGNORED))
        object.__setattr__(self, "valid_tokens", valid)


class Corpus(Protocol):
    """A fixed number of windows of `sequence_length` tokens, read by index.

    `name` identifies the corpus in messages. `fingerprint` identifies its contents.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def windows(self) -> int: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def read(self, windows: NDArray[np.int64]) -> Samples: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How tokens are cut into samples.

    Attributes:
        sequence_length: tokens in a sample; the label of the last one is the token after them.
        vocab_size: all tokens are below it.
        eod_mask_loss: exclude each document's first token from the loss.
        document_mask: also let tokens attend to their own document only.
        pad_last_window: pad the tokens after the last whole window to one more sample.
    """

    sequence_length: int
    vocab_size: int
    eod_mask_loss: bool = False
    document_mask: bool = False
    pad_last_window: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCorpus:
    """Concatenated documents cut into windows. A window may span several documents.

    Attributes:
        tokens: tokens of all documents, any integer type, in memory or memory-mapped, [tokens].
        documents: offset of each document's start, ascending, any integer type, [documents].
        unit: 1 if these offsets count tokens; the bytes of a token if they count bytes.
        first, end: range of `tokens` that belongs to this corpus.
        contents: hash that identifies the tokens: of all of them if they are in memory, else of the
            size of the files and of samples across their tokens.
        check_unchanged: raises a `UsageError` if the files have changed since they were opened.
    """

    name: str
    tokens: NDArray[Any]
    documents: Sequence[int] | NDArray[Any]
    unit: int = 1
    first: int
    end: int
    cut: Cut
    contents: str
    check_unchanged: Callable[[], None] = lambda: None

    @property
    def windows(self) -> int:
        """Number of windows. Each needs one token more than its length, for its last label."""
        labels, length = max(0, self.end - self.first - 1), self.cut.sequence_length
        return -(-labels // length) if self.cut.pad_last_window else labels // length

    def longest_sequence(self, samples: int) -> int:
        """Returns the sequence length at which the corpus has this many windows."""
        return max(0, self.end - self.first - 1) // samples

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens and of the way they are cut."""
        cut = self.cut
        facts = (self.contents, self.first, self.end, cut.sequence_length, cut.pad_last_window)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """Reads windows by their indices, [samples].

        Raises:
            UsageError: a file has changed, or holds tokens outside the vocabulary.
            ValueError: `tokens` ends before `end`.
        """
        self.check_unchanged()
        if len(self.tokens) < self.end:
            raise ValueError(f"{self.name} has {len(self.tokens):,} tokens, not {self.end:,}")
        length = self.cut.sequence_length
        firsts = (self.first + windows * length).tolist()
        whole = np.empty((len(firsts), length + 1), dtype=self.tokens.dtype)
        short = []
        for row, first in enumerate(firsts):
            window = self.tokens[first : min(first + length + 1, self.end)]
            count = len(window)
            if count <= length:
                whole[row, count:] = PADDING
                short.append((row, count))
            whole[row, :count] = window
        self._check_tokens(whole)
        tokens, labels = whole[:, :-1].astype(np.int64), whole[:, 1:].astype(np.int64)
        positions = None
        masks_documents = self.cut.eod_mask_loss or self.cut.document_mask
        if masks_documents:
            positions = self._mask_documents(labels, firsts)
        for row, count in short:
            labels[row, count - 1 :] = IGNORED
        valid = None if masks_documents or short else labels.size
        return Samples(tokens, labels, positions, valid=valid)

    def _mask_documents(self, labels: Tokens, firsts: list[int]) -> Tokens | None:
        """Sets labels that start a document to IGNORED, in place.

        Returns the tokens' positions within their documents, or None without a document mask.
        """
        starts = np.zeros_like(labels)
        for row, first in enumerate(firsts):
            inside = self._starts_between(first, first + self.cut.sequence_length) - first
            labels[row, inside - 1] = IGNORED
            within = inside[inside < self.cut.sequence_length]
            starts[row, within] = within
        if not self.cut.document_mask:
            return None
        return np.arange(self.cut.sequence_length) - np.maximum.accumulate(starts, axis=1)

    def _starts_between(self, first: int, last: int) -> Tokens:
        """Returns the tokens in first + 1 .. last that start a document, by their numbers."""
        # A mapped index is not aligned, and numpy's search would first copy all of it.
        low = bisect_right(self.documents, first * self.unit)
        high = bisect_right(self.documents, last * self.unit, lo=low)
        return np.asarray(self.documents[low:high], dtype=np.int64) // self.unit

    def _check_tokens(self, tokens: NDArray[Any]) -> None:
        is_signed = tokens.dtype.kind == "i"
        if tokens.max(initial=0) < self.cut.vocab_size and not (
            is_signed and tokens.min(initial=0) < 0
        ):
            return
        token = int(tokens.min() if tokens.min() < 0 else tokens.max())
        raise UsageError(
            f"{self.name} holds token {token}, which is outside"
            f" model.vocab_size={self.cut.vocab_size}",
            keys=(ModelConfig.vocab_size, DataConfig.path, DataConfig.blend),
            remedy="model.vocab_size of the tokenizer that encoded the corpus",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MockCorpus:
    """Random tokens without files, like NeMo's MockDataModule.

    Window `w` depends only on the seed and on `w`.
    """

    cut: Cut
    seed: int
    windows: int = 2**40
    name: str = "data.source=mock"

    @property
    def fingerprint(self) -> str:
        """The values that determine the tokens."""
        return f"mock {self.seed} {self.cut.vocab_size} {self.cut.sequence_length}"

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """Reads windows by their indices; each window is one document."""
        length = self.cut.sequence_length
        keys = [np.array([self.seed, window], dtype=np.uint64) for window in windows]
        generators = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
        tokens = np.stack(
            [generator.integers(self.cut.vocab_size, size=length + 1) for generator in generators]
        )
        positions = (
            np.tile(np.arange(length), (len(windows), 1)) if self.cut.document_mask else None
        )
        labels = tokens[:, 1:].copy()
        return Samples(tokens[:, :-1].copy(), labels, positions, valid=labels.size)
