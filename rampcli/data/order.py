"""The order of samples: a pure function of the seed and the sample's index.

Each epoch is a keyed pseudo-random permutation of the corpus's windows: a Feistel network over the
next even number of bits, applied repeatedly until the result is a window (cycle walking; Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). It needs no memory and no start-up
time, and does not depend on the machine.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from rampcli.batch.scrambling import Words, mix

ROUNDS = 6


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
