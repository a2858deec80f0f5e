"""Counts as people write them: `50_000_000`, `50M`, `250B`."""

import re

_COUNT = re.compile(r"(?P<digits>\d[\d_]*(?:\.\d+)?)(?P<unit>[KMBT]?)")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(text: str) -> int | None:
    """The integer that a count stands for (`1.5M` is 1500000, `12` is 12), or None where `text` is none.

    Units are decimal. A count that is not whole, like `1.5` or `0.0001K`, is none.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or len(text) > 80:
        return None
    whole, _, fraction = match["digits"].replace("_", "").partition(".")
    numerator, denominator = int(whole + fraction) * _UNITS[match["unit"]], 10 ** len(fraction)
    return None if numerator % denominator else numerator // denominator


def shorten(count: float) -> str:
    """A count in three digits, as a person reads it: `2.93B`, `134M`, `804`."""
    scaled, unit = scale(float(f"{count:.3g}"))
    return f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{unit}" if unit else f"{scaled:g}"


def scale(count: float) -> tuple[float, str]:
    """A count in the largest unit that it reaches: 2.5 and `M`; the count itself and nothing below a thousand."""
    unit = max(
        (unit for unit, size in _UNITS.items() if count >= size),
        key=lambda unit: _UNITS[unit],
        default="",
    )
    return count / _UNITS[unit], unit
