"""Metrics as a CSV file: `logging.trackers=[csv]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampcli.extend import setting, tracker


@dataclass(kw_only=True, slots=True)
class Csv:
    """The settings: `logging.csv.separator`."""

    separator: str = setting(",", "Text between two columns.")


@tracker("csv", settings=Csv)
def csv(run: Any, position: Any, name: str, settings: Csv) -> "CsvTracker":  # noqa: ARG001
    """Opens trackers/csv/metrics.csv in the run directory."""
    return CsvTracker(run, position, settings.separator)


class CsvTracker:
    """Appends one line per value: step, tag and value.

    A killed process may have written lines after the last position that was saved. They are cut
    off, because they are logged again.
    """

    def __init__(self, run: Any, position: Any, separator: str) -> None:
        self.logged = 0
        self.separator = separator
        folder = run.trackers / "csv"
        run.make_folder(folder)
        self.file = run.open_to_append(folder / "metrics.csv")
        self.file.truncate(position.facts.get("bytes", 0))
        self.facts = dict(position.facts)

    def log_config(self, settings: Mapping[str, Any]) -> None:
        """Shows no settings."""

    def log(self, metrics: Mapping[str, float], step: int, *, time: float) -> None:  # noqa: ARG002
        """Appends the values of a step."""
        for tag, value in metrics.items():
            self.file.write(f"{self.separator.join((str(step), tag, str(value)))}\n".encode())

    def flush(self) -> bool:
        """Writes the lines to disk."""
        self.file.flush()
        self.facts = {"bytes": self.file.tell()}
        return True

    def close(self) -> None:
        """Closes the file."""
        self.flush()
        self.file.close()
