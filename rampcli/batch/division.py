"""What divides what: the numbers that errors offer."""

from math import isqrt

TRIALS = 100_000
"""Divisors are found by trying; beyond this many trials only the small ones and their partners are."""


def nearest_multiples(value: int, unit: int) -> list[int]:
    """The positive multiples of `unit` next below and next above `value`, which is none itself."""
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple > 0]


def divisors(number: int, *, most: int) -> list[int]:
    """The divisors of `number` up to `most`, rising."""
    small = [
        candidate
        for candidate in range(1, min(isqrt(number), most, TRIALS) + 1)
        if number % candidate == 0
    ]
    large = [number // candidate for candidate in small]
    return sorted({divisor for divisor in small + large if divisor <= most})


def nearest_divisors(value: int, number: int) -> list[int]:
    """The divisors of `number` next below and next above `value`, which is none itself."""
    candidates = divisors(number, most=number)
    below, above = [d for d in candidates if d < value], [d for d in candidates if d > value]
    return below[-1:] + above[:1]
