"""The log that workers print to, read for error messages."""

import os
import re
from pathlib import Path

from rampcli.errors import printable
from rampcli.files.guarded_folder import open_to_read

MOST_BYTES = 2**16
"""Only this many bytes at the end of a log are read."""

_TIMEOUT = re.compile(
    r"(?:Watchdog caught collective operation timeout: .*\bTimeout\(ms\)="
    r"|(?:Timed out waiting |wait timeout after |client socket has timed out after )(?=\d+ms))(\d+)"
)
"""What NCCL, gloo and the store print if a rank has waited too long for others: milliseconds."""


class WorkerLog:
    """The part of a log that is written after this object is created, or the whole log.

    Args:
        path: log file. It need not exist yet.
        from_start: read the whole log.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self.path = path
        self._start = path.stat().st_size if path.exists() and not from_start else 0

    def lines(self) -> list[str]:
        """Returns the last non-empty lines, or none if the log was deleted or became a link."""
        try:
            file = open_to_read(self.path, follows_links=False)
        except OSError:
            return []
        with file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - MOST_BYTES))
            return [
                line
                for line in map(str.strip, file.read().decode(errors="replace").splitlines())
                if line
            ]

    def timeout_s(self) -> float | None:
        """Returns after how many seconds a rank stopped waiting for others, or None."""
        found = next(filter(None, map(_TIMEOUT.search, self.lines())), None)
        return None if found is None else int(found[1]) / 1000

    def describe(self, *, quote: bool = True) -> str:
        """Returns "log: PATH", followed by the last line of the log if `quote` is set."""
        last = self.lines()[-1:] if quote else []
        return f"log: {self.path}{''.join(f', which ends: {printable(line)}' for line in last)}"
