"""Counts as people write them: `50_000_000`, `50M`, `250B`."""

import re

_COUNT = re.compile(r"(?P<digits>\d[\d_]*(?:\.\d+)?)(?P<unit>[KMBT])")
_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(text: str) -> int | None:
    """The integer that a count with a decimal unit stands for (`1.5M` is 1500000), or None where `text` is none.

    A count that is not whole, like `1.5` or `0.0001K`, is none.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    whole, _, fraction = match["digits"].replace("_", "").partition(".")
    numerator, denominator = int(whole + fraction) * _UNITS[match["unit"]], 10 ** len(fraction)
    return None if numerator % denominator else numerator // denominator
