"""Counts as people write them (`50_000_000`, `50M`, `250B`) and fractions as decimals."""

import re
from collections.abc import Sequence
from fractions import Fraction

LONGEST_QUANTITY = 80
MOST_NAMED = 5
"""Things of a kind that a message names. The rest is counted."""
MOST_STAGES_OFFERED = 32
"""Stages for which a message offers a list. A longer one would not fit into it."""
_COUNT = re.compile(r"(?P<digits>\d[\d_]*(?:\.\d+)?)(?P<unit>[KMBT]?)")
_NUMBER = re.compile(r"\+?(?P<digits>[\d._]+)(?P<power>e[-+]?\d{1,2})?(?P<unit>[KMBT]?)", re.I)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(text: str) -> int | None:
    """Returns the integer that `text` stands for, or None if it is not a whole count.

    Units are decimal: `1.5M` is 1500000. `1.5` and `0.0001K` are not whole.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or len(text) > LONGEST_QUANTITY:
        return None
    whole, _, fraction = match["digits"].replace("_", "").partition(".")
    numerator, denominator = int(whole + fraction) * UNITS[match["unit"]], 10 ** len(fraction)
    return None if numerator % denominator else numerator // denominator


def parse_whole(text: str) -> int | None:
    """Returns the integer that `text` stands for, or None if it is not a whole number.

    It takes what Python's `float` reads, and a unit of either case: `1_000`, `16.`, `250b`.
    """
    match = _NUMBER.fullmatch(text) if text.isascii() and len(text) <= LONGEST_QUANTITY else None
    if match is None:
        return None
    try:
        number = Fraction(f"{match['digits']}{match['power'] or ''}") * UNITS[match["unit"].upper()]
    except ValueError:
        return None
    return number.numerator if number.denominator == 1 else None


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 node` or `2 nodes`."""
    plural = f"{noun}{'es' if noun.endswith('s') else 's'}"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(words: Sequence[str], *, most: int | None = None) -> str:
    """Returns words as a list in a sentence: `one, two and three`.

    If there are more than `most` words, the rest is counted: `one, two and 3 more`.
    """
    if most is not None and len(words) > most:
        words = [*words[:most], f"{len(words) - most:,} more"]
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def shorten(count: float) -> str:
    """Returns a count with three digits: `2.93B`, `134M`, `804`."""
    scaled, unit = scale(float(f"{count:.3g}"))
    return f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{unit}" if unit else f"{scaled:g}"


def scale(count: float) -> tuple[float, str]:
    """Returns a count in its largest unit: (2.5, "M"), or (count, "") below a thousand."""
    unit = max(
        (unit for unit, size in UNITS.items() if count >= size),
        key=lambda unit: UNITS[unit],
        default="",
    )
    return count / UNITS[unit], unit


def as_written(number: float) -> Fraction:
    """Returns a number as it is written: 0.1 is a tenth, not the nearest binary fraction."""
    return Fraction(str(number))


def is_decimal(number: Fraction) -> bool:
    """Returns whether a fraction can be written as a decimal without rounding."""
    return as_written(float(number)) == number


def decimal(number: Fraction) -> str:
    """Returns a fraction as a decimal (`1.5`), or as `2/3` if no decimal equals it."""
    if number.denominator == 1:
        return str(number.numerator)
    return str(float(number)) if is_decimal(number) else str(number)
