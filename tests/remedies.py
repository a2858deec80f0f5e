"""What an error offers, as settings to try."""

from itertools import product

from rampcli.errors import Assignments, RampcliError


def offers(error: RampcliError) -> list[dict]:
    """Returns the settings of each way out of an error that consists of settings."""
    return [
        dict(zip(remedy.values, values, strict=True))
        for remedy in error.remedies
        if isinstance(remedy, Assignments)
        for values in product(*remedy.values.values())
    ]
