"""The runs that `rampcli status` shows, and where they stand."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rampcli.cli.status_table import ListedRun
from rampcli.errors import RampcliError, reason_of
from rampcli.launch.status import Queues, read_status
from rampcli.runs.directory import RUNS, RunDirectory, find_run, runs_in
from rampcli.runs.events import EventsFile
from rampcli.runs.sweep_folder import SweepFolder

MOST_EVENT_BYTES = 2**20
"""In a list, the goodput of a run with more new events than this is left out."""


class Runs:
    """Runs whose status is read repeatedly.

    Args:
        words: paths or names of runs, or a single folder of runs. Without words, all runs below
            runs/.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.folder = _folder_of_runs(words)
        self.words = () if self.folder is not None else tuple(words)
        self.queues = Queues()
        self.files: dict[Path, EventsFile] = {}
        self.found = self.find()

    @property
    def only(self) -> RunDirectory | None:
        """The run, if exactly one was named."""
        return self.found[0] if len(self.words) == 1 else None

    def find(self) -> list[RunDirectory]:
        """Returns the runs.

        Raises:
            UsageError: a word names no run directory.
        """
        return [find_run(word) for word in self.words] or _runs_below(self.folder or Path(RUNS))

    def read(self) -> list[ListedRun]:
        """Returns where the runs stand now.

        Raises:
            RampcliError, OSError: a word names no run, or a file of the only run is damaged.
        """
        self.found = self.find()
        words = self.words or [self._name(run) for run in self.found]
        return [self._read(word, run) for word, run in zip(words, self.found, strict=True)]

    def _name(self, run: RunDirectory) -> str:
        return str(run.path.relative_to(self.folder or RUNS))

    def _read(self, name: str, run: RunDirectory) -> ListedRun:
        file = self.files.setdefault(run.path, EventsFile(run.events))
        most = None if len(self.words) == 1 else MOST_EVENT_BYTES
        try:
            status = read_status(run, self.queues, file=file, most_event_bytes=most)
            return ListedRun(name=name, status=status)
        except (RampcliError, OSError) as error:
            if len(self.words) == 1:
                raise
            return ListedRun(name=name, problem=reason_of(error))


def _runs_below(folder: Path) -> list[RunDirectory]:
    """Returns the runs in a folder, then those of each sweep in it."""
    runs = runs_in(folder)
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            if not path.is_symlink() and SweepFolder(path).is_claimed():
                runs += runs_in(path)
    return runs


def _folder_of_runs(words: Sequence[str]) -> Path | None:
    """Returns the folder that the only word names, by path or below runs/, if it holds runs."""
    if len(words) != 1:
        return None
    for path in (Path(words[0]), Path(RUNS, words[0])):
        if not RunDirectory(path).config.is_file() and runs_in(path):
            return path
    return None
