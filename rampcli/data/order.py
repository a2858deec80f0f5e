"""The order of samples: the corpus and the window of sample `i`, which need no memory to compute.

Both follow from the seed and the index of the sample alone, not from the machine. Each epoch of a
corpus is a keyed pseudo-random permutation of its windows: a Feistel network over the next even
number of bits, applied repeatedly until the result is a window (cycle walking; Black and Rogaway,
"Ciphers with Arbitrary Finite Domains", CT-RSA 2002). A blend interleaves several corpora.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.interleaving import count_by_share, halves
from rampcli.batch.scrambling import Words, mix
from rampcli.data.corpus import Corpus, Samples
from rampcli.data.special_tokens import NONE_KNOWN, SpecialTokens
from rampcli.planning.reading_start import FROM_THE_START, CorpusStart, ReadingStart

ROUNDS = 6
Indices = NDArray[np.int64]


class SampleOrder:
    """Maps sample `i` of a corpus to one of its windows.

    Args:
        windows: number of windows in the corpus; each epoch is a permutation of them.
        corpus: index of the corpus in a blend.
        phase: number of the phase of the run in which the order begins.
    """

    def __init__(self, *, windows: int, seed: int, corpus: int = 0, phase: int = 0) -> None:
        if windows < 1:
            raise ValueError(f"windows={windows} is less than one")
        self.windows = windows
        self.key = f"{seed}" if corpus == 0 else f"{seed} of corpus {corpus}"
        if phase > 0:
            self.key += f" from phase {phase} on"
        self._half_bits = max(1, ((windows - 1).bit_length() + 1) // 2)

    def windows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the window of each sample; indices from 0, of any shape."""
        windows = np.empty_like(samples)
        epochs, places = np.divmod(samples, self.windows)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            windows[here] = self._permute(places[here].astype(np.uint64), int(epoch)).astype(
                np.int64
            )
        return windows

    def _permute(self, places: Words, epoch: int) -> Words:
        keys = self._round_keys(epoch)
        landed = self._encrypt(places, keys)
        while (outside := landed >= np.uint64(self.windows)).any():
            landed[outside] = self._encrypt(landed[outside], keys)
        return landed

    def _round_keys(self, epoch: int) -> Words:
        digest = hashlib.sha512(f"rampcli sample order {self.key} {epoch}".encode()).digest()
        return np.frombuffer(digest, dtype="<u8", count=ROUNDS)

    def _encrypt(self, values: Words, keys: Words) -> Words:
        bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> bits, values & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) & mask)
        return (left << bits) | right


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
