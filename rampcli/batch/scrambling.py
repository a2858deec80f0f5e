"""Pseudo-random numbers that are pure functions of integers, the same on every machine."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: SplitMix64 adds it, because its mix leaves 0 as it is."""


def mix(values: Words) -> Words:
    """Scrambles 64 bits with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_of(*words: ArrayLike) -> Words:
    """Returns a hash of integers from 0 to 2^64 - 1. Arrays broadcast."""
    hashed = np.zeros(1, np.uint64)
    for word in words:
        # With one dimension at least: numpy warns if a scalar overflows.
        each = np.atleast_1d(np.asarray(word, dtype=np.uint64))
        hashed = mix(hashed + mix(each + GOLDEN_RATIO))
    return hashed.reshape(np.broadcast_shapes(*map(np.shape, words)))


def uniforms_of(*words: ArrayLike) -> NDArray[np.float64]:
    """Returns numbers from 0 up to but not including 1, drawn by the hash of integers."""
    return (hash_of(*words) >> np.uint64(11)).astype(np.float64) * np.float64(2**-53)
