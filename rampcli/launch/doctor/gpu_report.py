"""The report that `rampcli doctor --gpu` leaves in the current folder, to read and to send."""

import time
from collections.abc import Sequence
from pathlib import Path

from rampcli import __version__
from rampcli.errors import visible
from rampcli.launch.doctor.gpu_test import Result


class GpuReport:
    """A Markdown file that always holds the results so far.

    Attributes:
        path: file in the current folder. No other file is overwritten.

    Raises:
        OSError: the folder is not writable.
    """

    def __init__(self) -> None:
        self.path = Path(time.strftime("doctor-gpu-%Y%m%d-%H%M%S.md"))
        self._began = time.strftime("%Y-%m-%d %H:%M:%S %z")
        self._file = self.path.open("x", encoding="utf-8")
        self._write([])

    def update(self, results: Sequence[Result]) -> None:
        """Writes the results so far."""
        self._file.seek(0)
        self._file.truncate()
        self._write(results)

    def _write(self, results: Sequence[Result]) -> None:
        self._file.write(_text(results, began=self._began))
        self._file.flush()


def _text(results: Sequence[Result], *, began: str) -> str:
    lines = [
        "# rampcli doctor --gpu",
        "",
        f"rampcli {__version__}, {began}",
        "",
        "| check | result | seconds | finding |",
        "|---|---|---:|---|",
    ]
    for result in results:
        check = result.check
        remedy = "" if check.remedy is None else f" Try: {check.remedy}"
        finding = visible(f"{check.finding}{remedy}").replace("|", "\\|")
        lines.append(f"| {check.name} | {check.status} | {result.seconds:.0f} | {finding} |")
    for result in results:
        if result.details:
            lines += ["", f"## {result.check.name}", ""]
            lines += [f"    {line}" for line in visible(result.details, keeps="\n").splitlines()]
    return "\n".join(lines) + "\n"
