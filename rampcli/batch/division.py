"""Divisors and multiples, for the values that error messages suggest."""

from math import isqrt

TRIALS = 100_000
"""Largest divisor to try. Of larger divisors, only the partners of smaller ones are found."""


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Returns the positive multiples of `unit` just below and just above `value`.

    `value` itself is not a multiple.
    """
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple > 0]


def divisors(number: int, *, most: int) -> list[int]:
    """Returns the divisors of `number` up to `most`, in ascending order."""
    small = [
        candidate
        for candidate in range(1, min(isqrt(number), most, TRIALS) + 1)
        if number % candidate == 0
    ]
    large = [number // candidate for candidate in small]
    return sorted({divisor for divisor in small + large if divisor <= most})


def nearest_divisors(value: int, number: int) -> list[int]:
    """Returns the divisors of `number` just below and just above `value`.

    `value` itself is not a divisor.
    """
    candidates = divisors(number, most=number)
    below, above = [d for d in candidates if d < value], [d for d in candidates if d > value]
    return below[-1:] + above[:1]
