"""A disk that is slow for this process and its children."""

import time

from rampcli.data.order import Blend


def read_slowly(wait_s: float) -> None:
    """Makes each read of a corpus wait."""
    read = Blend.read_windows

    def slowed(self, which, windows):
        time.sleep(wait_s)
        return read(self, which, windows)

    Blend.read_windows = slowed
