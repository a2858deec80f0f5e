"""The runs of `rampcli status`, and their table: a row for each, and more facts in lines below."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from rampcli.batch.quantities import shorten
from rampcli.errors import RampcliError, reason_of, visible
from rampcli.launch.status import Queues, RunStatus, read_status
from rampcli.report.standstill_text import quiet_text, ranks_text
from rampcli.report.tables import duration, figure, share
from rampcli.runs.directory import RUNS, RunDirectory, find_run, runs_in
from rampcli.runs.event_kinds import LOSSES_OF_AVERAGES
from rampcli.runs.events import EventsFile
from rampcli.runs.facts import RunFacts
from rampcli.runs.sweep_folder import SweepFolder

MOST_NEW_EVENT_BYTES = 2**20
"""In a list, the goodput of a run with more new events than this is left out."""
MOST_WRITTEN_OUT = 1_000_000
"""Shorten the samples of runs with this many or more."""
LEAST_NAME = 8
"""Columns that the name of a run always gets."""
DROPPED_FIRST = ("nodes", "batch")
"""Columns that a narrow terminal does not show."""
INDENT = GAP = "  "
LEFT_ALIGNED = ("run", "state")
STATE_STYLES = {
    "training": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "failed": "red",
    "crashed": "red",
    "damaged": "red",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    """A run in the table.

    Attributes:
        name: how the run is called.
        status: where it stands, or None if a file of the run is damaged.
        problem: why the status is unknown, or None.
    """

    name: str
    status: RunStatus | None = None
    problem: str | None = None


class WatchedRuns:
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
        most = None if len(self.words) == 1 else MOST_NEW_EVENT_BYTES
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


@dataclass(frozen=True, slots=True)
class StatusTable:
    """The table. It fits any width, because lines that are too long are cut."""

    runs: Sequence[ListedRun]
    has_texts: bool = True
    """Show errors and warnings too."""

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        rows = [[*COLUMNS], *(_cells(run) for run in self.runs)]
        widths = {cells[0]: max(map(cell_len, cells)) for cells in zip(*rows, strict=True)}
        least = min(LEAST_NAME, widths["run"])
        for name in DROPPED_FIRST:
            if options.max_width < _total(widths) - widths["run"] + least:
                del widths[name]
        widths["run"] = max(least, widths["run"] + min(0, options.max_width - _total(widths)))
        yield _line(GAP.join(_aligned(rows[0], widths)), "bold")
        for run, cells in zip(self.runs, rows[1:], strict=True):
            aligned = _aligned(cells, widths)
            line = _line(GAP.join(aligned))
            begin = len(aligned[0] + GAP)
            line.stylize(STATE_STYLES.get(cells[1], ""), begin, begin + len(cells[1]))
            yield line
            for note in _notes(run, has_texts=self.has_texts):
                yield _line(f"{INDENT}{visible(note)}", "dim")


def _line(text: str, style: str = "") -> Text:
    return Text(text.rstrip(), style, no_wrap=True, overflow="ellipsis")


def _total(widths: Mapping[str, int]) -> int:
    """Returns the width of a line."""
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _aligned(cells: Sequence[str], widths: Mapping[str, int]) -> list[str]:
    """Returns the cells of a row, each as wide as its column, without columns that are dropped."""
    placed = []
    for name, cell in zip(COLUMNS, cells, strict=True):
        if name not in widths:
            continue
        width = widths[name]
        if cell_len(cell) > width:
            cell = set_cell_size(cell, width - 1) + "…"
        space = " " * (width - cell_len(cell))
        placed.append(cell + space if name in LEFT_ALIGNED else space + cell)
    return placed


def _samples(facts: RunFacts) -> str:
    shown = shorten if (facts.end_sample or 0) >= MOST_WRITTEN_OUT else "{:,}".format
    total = "" if facts.end_sample is None else f"/{shown(facts.end_sample)}"
    return f"{shown(facts.consumed_samples)}{total}"


def _loss(facts: RunFacts) -> str:
    """Returns the loss of the last step, unless its reward is shown."""
    return figure(facts.last.get("loss") if facts.last.get("reward") is None else None)


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)


COLUMNS: dict[str, Callable[[RunStatus], str]] = {
    "run": lambda _: "",
    "state": lambda status: visible(status.state),
    "stage": lambda status: f"{status.facts.stage + 1}/{len(status.facts.stages) or '-'}",
    "batch": lambda status: _known(status.facts.global_batch_size),
    "nodes": lambda status: _known(status.facts.num_nodes),
    "samples": lambda status: _samples(status.facts),
    "loss": lambda status: _loss(status.facts),
    "left": lambda status: duration(status.run_left_s) if status.run_left_s else "-",
}
"""Columns of `rampcli status` by their head.

To add a column of `rampcli status`: an entry here, and its value in
`rampcli/runs/facts.py:RunFacts` if others may show it.
"""


def _cells(run: ListedRun) -> list[str]:
    name = visible(run.name)
    if run.status is None:
        return [name, "damaged", *([""] * (len(COLUMNS) - 2))]
    return [name, *(cell(run.status) for cell in list(COLUMNS.values())[1:])]


def _notes(run: ListedRun, *, has_texts: bool) -> list[str]:
    """Returns the lines below the row of a run."""
    if run.status is None:
        return [run.problem or ""]
    status, notes = run.status, [" · ".join(_figures(run.status))]
    if status.standstill is not None and (ranks := ranks_text(status.standstill.ranks)):
        notes.append(ranks)
    if not has_texts:
        return notes
    warnings, error = status.facts.events.warnings, status.facts.error
    if error is not None:
        notes.append(f"error: {error['message']}")
    if status.jobs_unknown is not None:
        notes.append(f"jobs unknown: {status.jobs_unknown}")
    if warnings:
        count = f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}"
        notes.append(f"{count}: {warnings[-1]}")
    return notes


def _figures(status: RunStatus) -> list[str]:
    """Returns the facts of a run that have no column, most important first."""
    facts, shown = status.facts, list[str]()
    if facts.phase is not None:
        shown.append(f"phase {facts.phase}")
    if (reward := facts.last.get("reward")) is not None:
        shown.append(f"reward {figure(reward)}, solved {share(facts.last.get('solved'))}")
    if status.standstill is not None:
        shown.append(quiet_text(status.standstill))
    elif facts.tokens_per_s is not None:
        shown.append(f"{facts.tokens_per_s:,.0f} tokens/s")
    if facts.mfu is not None:
        shown.append(f"MFU {share(facts.mfu)}")
    if status.stage_left_s and status.stage_left_s != status.run_left_s:
        shown.append(f"stage {duration(status.stage_left_s)} left")
    if facts.validation_losses:
        losses = ", ".join(
            f"{name} {figure(loss)}" for name, loss in facts.validation_losses.items()
        )
        shown.append(f"validation {losses}")
    elif facts.validation_loss is not None:
        shown.append(f"validation {figure(facts.validation_loss)}")
    for column, of_average in LOSSES_OF_AVERAGES.items():
        if known := facts.losses_of_average(column):
            losses = ", ".join(f"{name} {figure(loss)}".strip() for name, loss in known.items())
            shown.append(f"{of_average} {losses}")
    if facts.evaluation is not None:
        shown.append(f"held-out reward {figure(facts.evaluation['greedy'])}")
    if status.saved_step is None:
        shown.append("nothing saved")
    else:
        age = "" if status.saved_at is None else f", {_age(status.saved_at)}"
        shown.append(f"saved step {status.saved_step:,}{age}")
    if status.goodput is not None:
        shown.append(f"goodput {status.goodput:.0%}")
    return shown


def _age(moment: float) -> str:
    """Returns how long ago a moment was, for example `3 min ago`."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
