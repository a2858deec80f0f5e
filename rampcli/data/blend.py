"""A blend of corpora: which of them sample `i` comes from, and which of its windows it is."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rampcli.data.corpus import Corpus, Samples
from rampcli.data.order import SampleOrder

Indices = NDArray[np.int64]


class Blend:
    """Samples from corpora, in proportion to their shares at every sample: of the first `n`, each corpus has its share to within half a
    sample for each halving of their number (two corpora: half a sample, eight: one and a half).

    Corpora are halved until one is left. Of the first `m` samples of a half, the first quarter of all gets `m` times its share of the
    half, rounded: both counts only grow with `m`, so sample `m` belongs to the one that grows there, and is its sample of that number.
    That takes neither memory nor start-up time, and no machine can change it.

    Args:
        corpora: at least one; each has a window.
        shares: of the corpora: whole numbers above 0, whose sum is below 2^31 so that products stay within 64 bits.
        seed: of the order; None leaves each corpus in its own.
    """

    def __init__(
        self, corpora: Sequence[Corpus], shares: Sequence[int], *, seed: int | None
    ) -> None:
        self.corpora = corpora
        self.shares = shares
        self.orders = [
            None if seed is None else SampleOrder(windows=corpus.windows, seed=seed, corpus=number)
            for number, corpus in enumerate(corpora)
        ]

    @property
    def fingerprint(self) -> str:
        """A hash of the corpora and their shares."""
        facts = [
            (share, corpus.fingerprint)
            for share, corpus in zip(self.shares, self.corpora, strict=True)
        ]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def read(self, samples: Indices) -> Samples:
        """What samples hold."""
        return self.read_places(*self.places(samples))

    def counts(self, samples: int) -> list[int]:
        """How many of the first `samples` each corpus has."""
        counts = [samples] * len(self.shares)
        for low, middle, high in _halves(len(self.shares)):
            left, both = sum(self.shares[low:middle]), sum(self.shares[low:high])
            first = (counts[low] * left + both // 2) // both
            counts[low:high] = [first] * (middle - low) + [counts[low] - first] * (high - middle)
        return counts

    def places(self, samples: Indices) -> tuple[Indices, Indices]:
        """The corpora of samples and their windows there, element by element; any shape, values from 0."""
        which, turns = self.turns(samples)
        windows = turns.copy()
        for number, order in enumerate(self.orders):
            if order is not None:
                here = which == number
                windows[here] = order.windows_of(turns[here])
        return which, windows

    def turns(self, samples: Indices) -> tuple[Indices, Indices]:
        """The corpora of samples, and how many samples each had before them."""
        which, turns = np.zeros_like(samples), samples.copy()
        for low, middle, high in _halves(len(self.shares)):
            here = which == low
            mine = turns[here]
            left, both = sum(self.shares[low:middle]), sum(self.shares[low:high])
            before, after = _rounded(mine, left, both), _rounded(mine + 1, left, both)
            goes_left = after > before
            which[here] = np.where(goes_left, low, middle)
            turns[here] = np.where(goes_left, before, mine - before)
        return which, turns

    def read_places(self, which: Indices, windows: Indices) -> Samples:
        """What windows of corpora hold, in the order that they are given in."""
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
            sum(part.valid_tokens for part in parts),
        )


def _halves(corpora: int) -> Iterator[tuple[int, int, int]]:
    """How so many corpora are halved until one is left: first, middle and end of what is halved, the whole before its halves."""
    halves = [(0, corpora)]
    while halves:
        low, high = halves.pop()
        if high - low > 1:
            middle = (low + high) // 2
            yield low, middle, high
            halves += [(low, middle), (middle, high)]


def _rounded(counts: Indices, share: int, of: int) -> Indices:
    """`counts * share / of`, to the nearest whole number, in 64 bits."""
    wholes, rest = np.divmod(counts, of)
    rounded: Indices = wholes * share + (rest * share + of // 2) // of
    return rounded
