"""The folder of a sweep: its run directories, and a file that lists their values."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rampcli.errors import DamagedFileError, UsageError
from rampcli.files.guarded_folder import GuardedFolder, link_refused
from rampcli.files.records import read_json
from rampcli.runs.directory import RUNS

RUN = {"folder": str, "values": {...: str}}
SWEEP = {"runs": [RUN]}
"""Shape of .sweep.json, in the notation of `rampcli.files.records`."""
MOST_SWEEP_BYTES = 16 * 2**20
MOST_FOLDER_RUNS = 5000
"""Most runs of a folder, over all sweeps that were started in it."""
MOST_SETTINGS = 100
"""Most settings that differ between them. Each is a column of a table of all runs."""


@dataclass(frozen=True, slots=True)
class SweepFolder(GuardedFolder):
    """A folder whose folders are the run directories of a sweep."""

    KIND: ClassVar[str] = "sweep"

    @property
    def listing(self) -> Path:
        """The file that lists the runs. A pattern such as `FOLDER/*` leaves it out."""
        return self.path / ".sweep.json"

    def run_path(self, name: str) -> Path:
        """Returns the path of a run directory.

        Raises:
            UsageError: it is a symbolic link.
        """
        path = self.path / name
        if path.is_symlink():
            raise link_refused(path)
        return path

    def read(self) -> dict[str, dict[str, str]]:
        """Returns the values of each run by the name of its folder, in order.

        Empty if there is no list yet.

        Raises:
            DamagedFileError: the list is damaged.
        """
        with suppress(FileNotFoundError):
            facts: dict[str, Any] = read_json(self.listing, SWEEP, most_bytes=MOST_SWEEP_BYTES)
            if excess := _excess([run["values"] for run in facts["runs"]]):
                raise DamagedFileError(f"{self.listing} lists {excess}")
            runs = {run["folder"]: run["values"] for run in facts["runs"]}
            if wrong := [name for name in runs if not _is_name(name)]:
                raise DamagedFileError(f"{self.listing} is damaged: {wrong[0]!r} is not a name")
            return runs
        return {}

    def add(self, runs: Mapping[str, Mapping[str, str]]) -> None:
        """Lists runs first, in this order; runs that are listed already come after them.

        Raises:
            DamagedFileError: as `read`.
            UsageError: there would be more runs or settings than `read` accepts.
        """
        others = {name: values for name, values in self.read().items() if name not in runs}
        together = {**runs, **others}
        if excess := _excess(list(together.values())):
            raise UsageError(
                f"the sweeps in {self.path} would have {excess}", remedy="a new run_dir="
            )
        listed = [{"folder": name, "values": dict(of)} for name, of in together.items()]
        self.write_json(self.listing, {"runs": listed})


def _excess(values: Sequence[Mapping[str, str]]) -> str | None:
    """Returns what there is too much of in the values of runs, or None."""
    if len(values) > MOST_FOLDER_RUNS:
        return f"more than {MOST_FOLDER_RUNS:,} runs"
    if len(set().union(*values)) > MOST_SETTINGS:
        return f"runs that differ in more than {MOST_SETTINGS:,} settings"
    return None


def _is_name(name: str) -> bool:
    """Returns whether a word can name a folder of a run: printable, and in this folder."""
    return name.isprintable() and "/" not in name and name not in ("", ".", "..")


def find_sweep(word: str) -> SweepFolder | None:
    """Returns the sweep that a word names, by path or by name below runs/, or None."""
    for path in (Path(word), Path(RUNS, word)):
        if (sweep := SweepFolder(path)).is_claimed():
            return sweep
    return None
