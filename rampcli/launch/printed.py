"""What workers have printed."""

import os
from pathlib import Path

from rampcli.errors import printable
from rampcli.own_folder import open_to_read

MOST_BYTES = 2**16


class Printed:
    """What is printed to a log from now on.

    Attributes:
        log: the file. It need not be there yet.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self._begins = log.stat().st_size if log.exists() else 0

    def lines(self) -> list[str]:
        """Returns the last lines, without empty ones; none if the log has been deleted or replaced by a link."""
        try:
            file = open_to_read(self.log, follows_links=False)
        except OSError:
            return []
        with file:
            file.seek(max(self._begins, file.seek(0, os.SEEK_END) - MOST_BYTES))
            return [
                line
                for line in map(str.strip, file.read().decode(errors="replace").splitlines())
                if line
            ]

    def place(self, *, quotes: bool = True) -> str:
        """Returns where the log is, and its last line if there is one."""
        last = self.lines()[-1:] if quotes else []
        return f"log: {self.log}{''.join(f', which ends: {printable(line)}' for line in last)}"
