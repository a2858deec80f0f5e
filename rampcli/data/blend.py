"""A blend of corpora: maps sample `i` to a corpus and one of its windows."""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.interleaving import count_by_share, halves
from rampcli.data.corpus import Corpus, Samples
from rampcli.data.order import SampleOrder
from rampcli.data.special_tokens import NONE_KNOWN, SpecialTokens
from rampcli.planning.reading_start import FROM_THE_START, CorpusStart, ReadingStart

Indices = NDArray[np.int64]


class Blend:
    """Interleaves corpora in proportion to their shares, at every point of the sequence.

    The list of corpora is halved recursively. Of the first `m` samples of a list, its first half
    gets `m` times its share, rounded to the nearest integer, and its second half gets the rest. As
    `m` grows by one, exactly one of the two counts grows by one. Sample `m` belongs to that half,
    and the count before is its index there. This needs no memory and no start-up time, and does not
    depend on the machine.

    Rounding adds at most half a sample of error per halving: among the first `n` samples, the count
    of each of two corpora is within half a sample of its share, of eight within one and a half.

    Args:
        corpora: at least one.
        shares: positive integers, one per corpus, whose sum is below 2^31 so that products fit into
            64 bits.
        seed: seed of the order; None reads the windows of each corpus in their own order.
        start: where reading begins, for a phase of a run.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        shares: Sequence[int] = (1,),
        *,
        seed: int | None = None,
        start: ReadingStart = FROM_THE_START,
    ) -> None:
        self.corpora = corpora
        self.shares = shares
        self.seed = seed
        self.start = start

    def starting_at(self, start: ReadingStart) -> "Blend":
        """Returns the same corpora, whose reading begins elsewhere."""
        return Blend(self.corpora, self.shares, seed=self.seed, start=start)

    @cached_property
    def starts(self) -> Sequence[CorpusStart]:
        """Where the order of each corpus begins, and how much of it was read before."""
        numbers = range(len(self.corpora))
        return self.start.corpora or [CorpusStart(phase=0, corpus=number) for number in numbers]

    @cached_property
    def orders(self) -> list[SampleOrder | None]:
        """The order of the windows of each corpus. Each must have at least one."""
        seed = self.seed
        return [
            None
            if seed is None
            else SampleOrder(
                windows=corpus.windows, seed=seed, corpus=start.corpus, phase=start.phase
            )
            for corpus, start in zip(self.corpora, self.starts, strict=True)
        ]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """A hash of the corpora, and one of the corpora and their shares.

        Checkpoints have the first one, and those of earlier versions the second one.
        """
        found = [corpus.fingerprint for corpus in self.corpora]
        facts = [(1, one) for one in found], [*zip(self.shares, found, strict=True)]
        alone, with_shares = (hashlib.sha256(repr(one).encode()).hexdigest() for one in facts)
        return alone, with_shares

    def read(self, samples: Indices) -> Samples:
        """Reads samples by their indices, from the start of the run."""
        return self.read_windows(*self.locate(samples))

    def counts(self, samples: int) -> list[int]:
        """Returns how many of the first `samples` come from each corpus."""
        return count_by_share(self.shares, samples)

    def most_samples(self, limit: int) -> int:
        """Returns the most samples, up to a limit, for which the corpora have enough windows."""

        def lacks_windows(samples: int) -> bool:
            counts = zip(self.counts(samples), self.corpora, strict=True)
            return any(count > corpus.windows for count, corpus in counts)

        return bisect_left(range(1, limit + 1), True, key=lacks_windows)

    def locate(self, samples: Indices) -> tuple[Indices, Indices]:
        """Returns the corpus and the window of each sample.

        Args:
            samples: indices from the start of the run, of any shape; both results have the same
                shape.
        """
        which, index = self.assign(samples - self.start.first_sample)
        windows = index.copy()
        for number, (order, start) in enumerate(zip(self.orders, self.starts, strict=True)):
            if order is not None:
                here = which == number
                windows[here] = order.windows_of(index[here] + start.samples)
        return which, windows

    def assign(self, samples: Indices) -> tuple[Indices, Indices]:
        """Returns the corpus of each sample, and the sample's index among those of its corpus."""
        which, index = np.zeros_like(samples), samples.copy()
        for low, middle, high in halves(len(self.shares)):
            here = which == low
            inside = index[here]
            left, both = sum(self.shares[low:middle]), sum(self.shares[low:high])
            before, after = _rounded(inside, left, both), _rounded(inside + 1, left, both)
            goes_left = after > before
            which[here] = np.where(goes_left, low, middle)
            index[here] = np.where(goes_left, before, inside - before)
        return which, index

    def read_windows(self, which: Indices, windows: Indices) -> Samples:
        """Reads windows of corpora, in the given order; `which` and `windows` are [samples]."""
        if len(self.corpora) == 1:
            return self.corpora[0].read(windows)
        order = np.argsort(which, kind="stable")
        numbers = np.unique(which).tolist()
        parts = [self.corpora[number].read(windows[which == number]) for number in numbers]
        back = np.argsort(order, kind="stable")
        positions = [part.positions for part in parts if part.positions is not None]
        return Samples(
            np.concatenate([part.tokens for part in parts])[back],
            np.concatenate([part.labels for part in parts])[back],
            np.concatenate(positions)[back] if positions else None,
            valid=sum(part.valid_tokens for part in parts),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpora:
    """The corpora of a run.

    Attributes:
        training: samples by index.
        validation: samples by index, of each corpus by name; None if it has no name.
        tokenizer: contents of `tokenizer.json`; None if unknown.
        vocab_size: size of its vocabulary; None if unknown.
        special_tokens: special tokens of the texts, as far as they are known.
    """

    training: Blend
    validation: Mapping[str | None, Blend]
    tokenizer: str | None = None
    vocab_size: int | None = None
    special_tokens: SpecialTokens = NONE_KNOWN


def _rounded(counts: Indices, share: int, of: int) -> Indices:
    """Returns `counts * share / of`, rounded to the nearest integer, computed in 64 bits."""
    wholes, rest = np.divmod(counts, of)
    rounded: Indices = wholes * share + (rest * share + of // 2) // of
    return rounded
