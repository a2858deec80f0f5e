"""Interleaves corpora in proportion to their shares: how many of the first samples each has.

A list of corpora is halved recursively. Of the first `m` samples of a list, its first half gets `m`
times its share, rounded to the nearest integer, and its second half gets the rest.
"""

from collections.abc import Iterator, Sequence


def halves(corpora: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first, middle, end) of each range that is halved; a range comes before its halves."""
    ranges = [(0, corpora)]
    while ranges:
        low, high = ranges.pop()
        if high - low > 1:
            middle = (low + high) // 2
            yield low, middle, high
            ranges += [(low, middle), (middle, high)]


def count_by_share(shares: Sequence[int], samples: int) -> list[int]:
    """Returns how many of the first `samples` come from each corpus."""
    counts = [samples] * len(shares)
    for low, middle, high in halves(len(shares)):
        left, both = sum(shares[low:middle]), sum(shares[low:high])
        first = (counts[low] * left + both // 2) // both
        counts[low:high] = [first] * (middle - low) + [counts[low] - first] * (high - middle)
    return counts
