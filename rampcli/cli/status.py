"""`rampcli status`: where runs stand, as a table, as JSON, or refreshed every two seconds."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rampcli.cli.console import build_console, print_table, say
from rampcli.cli.jobs import jobs_table
from rampcli.cli.status_table import ListedRun, StatusTable
from rampcli.config import snapshot
from rampcli.errors import RampcliError, UsageError, reason_of, visible
from rampcli.launch.queues import Queues
from rampcli.launch.status import STARTING, TRAINING, UNKNOWN, WAITING, RunStatus, read_status
from rampcli.locks import is_held
from rampcli.runs.directory import COMPLETE, RUNS, RunDirectory, find_run, runs_in
from rampcli.runs.rows import Tail
from rampcli.runs.sweep_folder import SweepFolder
from rampcli.runs.time_spent import time_spent

REFRESH_S = 2.0
MOST_EVENT_BYTES = 2**20
"""In a list, the goodput of a run with more new events than this is left out."""


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a run that have been read.

    Attributes:
        inode: the file. A run that is deleted and starts again has another one.
        tail: reads further events.
        rows: events so far.
    """

    inode: int
    tail: Tail
    rows: list[dict[str, Any]] = field(default_factory=list)


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
        self.events: dict[Path, Events] = {}
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
        try:
            status = read_status(run, self.queues)
            return ListedRun(name=name, status=status, goodput=self.goodput(run, status))
        except (RampcliError, OSError) as error:
            if len(self.words) == 1:
                raise
            return ListedRun(name=name, problem=reason_of(error))

    def goodput(self, run: RunDirectory, status: RunStatus) -> float | None:
        """Returns the share of the running time of a run that went into steps that count."""
        try:
            file = run.events.stat()
        except FileNotFoundError:
            return None
        read = self.events.get(run.path)
        if read is None or read.inode != file.st_ino or read.tail.offset > file.st_size:
            read = self.events[run.path] = Events(file.st_ino, Tail(run.events))
        if file.st_size - read.tail.offset > MOST_EVENT_BYTES and len(self.words) != 1:
            return None
        read.rows.extend(read.tail.rows())
        now = time.time() if status.state in (TRAINING, STARTING) else None
        last_step_at = status.step_at if status.step else 0.0
        return time_spent(read.rows, last_step_at=last_step_at, now=now).goodput


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


def show_status(words: Sequence[str], *, watch: bool, as_json: bool) -> None:
    """Prints where runs stand. For a single named run, also prints how to resume it.

    Raises:
        UsageError: a word names no run directory, or the options contradict each other.
        RampcliError: a file of the only run is damaged.
    """
    if watch and as_json:
        raise UsageError("--watch prints no JSON", remedy="--watch or --json")
    runs = Runs(words)
    console = build_console()
    if as_json:
        _print_json(runs)
    elif watch:
        if not console.is_terminal or console.is_dumb_terminal:
            raise UsageError("--watch needs a terminal", remedy="rampcli status, or --json")
        _watch(runs, console)
    elif not runs.found:
        say(console, nothing_found())
    else:
        listed = runs.read()
        console.print(StatusTable(listed, has_texts=runs.only is None))
        if runs.only is not None and listed[0].status is not None:
            console.print()
            for detail in details(runs.only, listed[0].status):
                if isinstance(detail, str):
                    say(console, detail)
                else:
                    print_table(console, detail)


def details(run: RunDirectory, status: RunStatus) -> Iterator[str | Table]:
    """Yields the details of the only run: its progress, error, jobs, and how to resume it."""
    saved = (
        "nothing saved" if status.saved_step is None else f"saved after step {status.saved_step:,}"
    )
    yield (
        f"step {status.step:,}, {status.consumed_samples:,} {snapshot.unit(run.config)}; {saved}"
    )
    if status.warning is not None:
        yield f"warning: {visible(status.warning)}"
    if status.error is not None:
        yield f"error: {visible(status.error['message'])}"
        if status.error["remedy"]:
            yield f"try:   {visible(status.error['remedy'])}"
    if status.jobs:
        yield jobs_table(status.jobs)
    if status.jobs_unknown is not None:
        yield f"the state of its jobs is unknown: {status.jobs_unknown}"
    yield from _supervision(run, status)


def _supervision(run: RunDirectory, status: RunStatus) -> Iterator[str]:
    """Yields the process that trains a run, or how to resume it; nothing if that is unknown."""
    if status.supervisor is not None:
        yield f"supervised by {status.supervisor}"
    elif is_held(run.workers_lock):
        yield "training, but the supervisor is gone"
    elif status.state == WAITING:
        yield "waiting in the queue"
    elif status.state not in (STARTING, TRAINING, UNKNOWN, COMPLETE):
        has_remedy = status.error is not None and status.error["remedy"] is not None
        if any(job.is_active for job in status.jobs):
            yield "not training; its job has not ended yet"
        elif status.next is None or has_remedy:
            yield "not training"
        elif status.next["command"] is None:
            yield "not training; to resume, start it again as before"
        else:
            yield f"not training; resume with:\n  {visible(status.next['command'])}"


def nothing_found() -> str:
    """Returns the sentence that is printed if there is no run."""
    return (
        f"there is no run in {RUNS}/; start one with `rampcli pretrain --factory llama3_tiny`, or"
        " name the directory of a run: rampcli status RUN"
    )


def _print_json(runs: Runs) -> None:
    """Prints one object for a single named run, otherwise a list of objects."""
    objects = []
    for listed, run in zip(runs.read(), runs.found, strict=True):
        facts: dict[str, Any] = {"path": str(run.path)}
        if listed.status is None:
            objects.append(facts | {"problem": listed.problem})
        else:
            objects.append(facts | listed.status.to_json() | {"goodput": listed.goodput})
    typer.echo(json.dumps(objects if runs.only is None else objects[0], indent=1))


def _watch(runs: Runs, console: Console) -> None:
    """Refreshes the picture until Ctrl-C."""
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            live.update(picture(runs), refresh=True)
            time.sleep(REFRESH_S)


def picture(runs: Runs) -> RenderableType:
    """Returns what `--watch` shows now."""
    listed = runs.read()
    if not listed:
        return Text(nothing_found())
    below = list[RenderableType]()
    if runs.only is not None and listed[0].status is not None:
        below.append("")
        for detail in details(runs.only, listed[0].status):
            below.append(Text(visible(detail, keeps="\n")) if isinstance(detail, str) else detail)
    return Group(StatusTable(listed, has_texts=runs.only is None), *below)
