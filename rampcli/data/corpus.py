"""What a corpus is: windows of tokens, and their labels."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import UsageError

Tokens = NDArray[np.int64]

IGNORED = -100
"""The label of a token that the loss leaves out, as torch's cross entropy has it."""
PADDING = 0
"""What a padded sample holds where it has no tokens; their labels are IGNORED."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What some samples hold.

    Attributes:
        tokens: [samples, sequence_length].
        labels: like them: the next token each, or IGNORED.
        positions: like them: places of the tokens in their documents, as far as those are in the sample; None where documents are not
            told apart.
        valid_tokens: labels that the loss counts.
    """

    tokens: Tokens
    labels: Tokens
    positions: Tokens | None
    valid_tokens: int


class Corpus(Protocol):
    """Windows of `sequence_length` tokens, in no order; `fingerprint` tells one corpus from another, `name` says which it is."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def windows(self) -> int: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def read(self, windows: NDArray[np.int64]) -> Samples: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How tokens become samples.

    Attributes:
        sequence_length: tokens in a sample; the label of its last token is one more.
        vocab_size: no token is as large.
        eod_mask_loss: the first token of a document is not asked for.
        document_mask: and no token sees another document.
        pad_last_window: the tokens behind the last whole window are a sample too.
    """

    sequence_length: int
    vocab_size: int
    eod_mask_loss: bool = False
    document_mask: bool = False
    pad_last_window: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCorpus:
    """Documents laid end to end and cut into windows, which may hold the end of one document and the start of the next.

    Attributes:
        name: as a person would name it.
        tokens: of any integer type, in memory or mapped into it, [tokens of all documents].
        documents: where documents start among them, ascending; any integers, [documents].
        unit: what `documents` counts one token as.
        first, end: the tokens that are this corpus: a part of the documents.
        cut: how they become samples.
        contents: tells these tokens from others.
        check_unchanged: raises where the files are no longer those that were opened.
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
        """How many; each has one more token for the last label, and the last may be padded."""
        labels = max(0, self.end - self.first - 1)
        return (
            -(-labels // self.cut.sequence_length)
            if self.cut.pad_last_window
            else labels // self.cut.sequence_length
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens and of how they are cut."""
        facts = (
            self.contents,
            self.first,
            self.end,
            self.cut.sequence_length,
            self.cut.pad_last_window,
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """What windows hold.

        Raises:
            UsageError: the file was changed, or holds tokens beyond the vocabulary.
        """
        self.check_unchanged()
        length = self.cut.sequence_length
        firsts = (self.first + windows * length).tolist()
        window = np.empty((len(firsts), length + 1), dtype=np.int64)
        tokens, end, short = self.tokens, self.end, []
        for row, first in enumerate(firsts):
            if first + length < end:
                window[row] = tokens[first : first + length + 1]
            else:
                window[row, : end - first] = tokens[first:end]
                window[row, end - first :] = PADDING
                short.append((row, end - first))
        self._check_tokens(window)
        labels, positions = window[:, 1:], None
        masked = self.cut.eod_mask_loss or self.cut.document_mask
        if masked or short:
            labels = labels.copy()
        if masked:
            positions = self._tell_documents_apart(labels, firsts)
        for row, count in short:
            labels[row, count - 1 :] = IGNORED
        valid_tokens = int((labels != IGNORED).sum()) if masked or short else labels.size
        return Samples(window[:, :-1], labels, positions, valid_tokens)

    def _tell_documents_apart(self, labels: Tokens, firsts: list[int]) -> Tokens | None:
        """Let no label be the start of a document; the tokens' places in their documents, where those are to be masked."""
        starts = np.zeros_like(labels)
        for row, first in enumerate(firsts):
            inside = self._starts_between(first, first + self.cut.sequence_length) - first
            labels[row, inside - 1] = IGNORED
            starts[row, inside[inside < self.cut.sequence_length]] = inside[
                inside < self.cut.sequence_length
            ]
        if not self.cut.document_mask:
            return None
        return np.arange(self.cut.sequence_length) - np.maximum.accumulate(starts, axis=1)

    def _starts_between(self, first: int, last: int) -> Tokens:
        """The places after `first`, up to `last`, where documents start."""
        # The index's numbers are not aligned in its file, and numpy's search would copy all of them to align them.
        low = bisect_right(self.documents, first * self.unit)
        high = bisect_right(self.documents, last * self.unit, lo=low)
        return np.asarray(self.documents[low:high], dtype=np.int64) // self.unit

    def _check_tokens(self, tokens: Tokens) -> None:
        """Refuse tokens that the model has no embedding for."""
        if (
            tokens.view(np.uint64).max(initial=0) < self.cut.vocab_size
        ):  # one pass: a negative one is large without its sign
            return
        for token in (int(tokens.min(initial=0)), int(tokens.max(initial=0))):
            if not 0 <= token < self.cut.vocab_size:
                raise UsageError(
                    f"{self.name} holds the token {token}, and model.vocab_size={self.cut.vocab_size}",
                    keys=("model.vocab_size", "data.path", "data.blend"),
                    remedy="the model.vocab_size of the tokenizer that wrote it",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class MockCorpus:
    """Random tokens: window `w` is a pure function of the seed and `w`. Needs no files, as NeMo's MockDataModule."""

    cut: Cut
    seed: int
    windows: int = 2**40
    name: str = "data.source=mock"

    @property
    def fingerprint(self) -> str:
        """What determines the tokens."""
        return f"mock {self.seed} {self.cut.vocab_size} {self.cut.sequence_length}"

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """What windows hold: one document each."""
        length = self.cut.sequence_length
        keys = [np.array([self.seed, window], dtype=np.uint64) for window in windows]
        generators = [np.random.Generator(np.random.Philox(key=key)) for key in keys]
        tokens = np.stack(
            [generator.integers(self.cut.vocab_size, size=length + 1) for generator in generators]
        )
        positions = (
            np.tile(np.arange(length), (len(windows), 1)) if self.cut.document_mask else None
        )
        return Samples(tokens[:, :-1], tokens[:, 1:], positions, len(windows) * length)
