"""The run directory: paths of its files, and reading and writing of its JSON files.

Every file is JSON or text. state.json is replaced as a whole, so a reader sees the old or the new
state. `rampcli.runs.rows` reads the rows of metrics.jsonl, events.jsonl and responses.jsonl.
"""

import json
import os
import re
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.files.guarded_folder import GuardedFolder, PathInside, link_refused
from rampcli.files.records import COUNT, POSITIVE, read_json
from rampcli.plugins.launchers import LAUNCHERS
from rampcli.runs.event_kinds import TEXT_OR_NULL
from rampcli.runs.metrics import COLUMNS_FILE, Metric, columns_json, fitting, from_json
from rampcli.runs.rows import Tail, end_of_rows, end_of_step, read_rows

STAGE_BOUNDARY, COMPLETE, PREEMPTED = "stage_boundary", "complete", "preempted"
"""Values of `status` in state.json if workers have ended in an orderly way."""
STAGE_IS_OVER = (STAGE_BOUNDARY, COMPLETE)
RUNS = "runs"
"""Folder of run directories, below the working directory."""
TUNE_FOLDER = "tune"
"""Folder of the searches and diagnoses of a run, with the configuration of a search."""
PHASE_FOLDER = "phase="
"""Beginning of the name of a folder in `TUNE_FOLDER` for a phase. It is a run directory itself."""
MAX_OLD_FILES = 10_000
OWN_NAMES = (
    "config.yaml",
    "overrides.txt",
    "plan.json",
    "state.json",
    "columns.json",
    "metrics.jsonl",
    "events.jsonl",
    "responses.jsonl",
    "checkpoints",
    "profile",
    "logs",
    "heartbeats",
    *LAUNCHERS,
    "trackers",
    "tune.json",
    TUNE_FOLDER,
    "cbs",
)
MAX_STATE_BYTES = 2**20
MAX_PLAN_BYTES = 16 * 2**20
APPEND_LOCK = threading.Lock()
ASIDE = ".tmp"
"""Suffix of the folder of a checkpoint that is being written."""
_STEP_FOLDER = re.compile(r"step_(\d{8,18})", re.ASCII)

# Shapes, in the notation of `rampcli.files.records`, of the fields that readers rely on. Files
# may hold more.
NEXT = {"stage": COUNT, "global_batch_size": COUNT, "num_nodes": COUNT, "command": TEXT_OR_NULL}
FAILURE = {
    "message": str,
    "set_by": [str],
    "remedy": TEXT_OR_NULL,
    "exit_code": COUNT,
    "understood": bool,
    "out_of_memory?": bool,
}
STATE = {
    "status": str,
    "step": COUNT,
    "consumed_samples": COUNT,
    "stage": COUNT,
    "next": (NEXT, None),
    "error?": FAILURE,
}
STAGE_SHAPE = {
    **dict.fromkeys(("stage", "first_sample", "first_step"), COUNT),
    **dict.fromkeys(("samples", "steps"), (COUNT, None)),
    **dict.fromkeys(("num_nodes", "world_size", "data_parallel_size"), (POSITIVE, None)),
    **dict.fromkeys(("micro_batch_size", "accumulate_grad_batches"), (POSITIVE, None)),
    "global_batch_size": POSITIVE,
}
PHASE_SHAPE = {
    "name": str,
    "sequence_length": POSITIVE,
    **dict.fromkeys(("first_stage", "stages", "first_sample", "first_step", "first_token"), COUNT),
    **dict.fromkeys(("samples", "steps", "tokens"), (COUNT, None)),
}
PLAN_SHAPE = {
    "sequence_length?": POSITIVE,
    "stages": [STAGE_SHAPE],
    "restarts_always?": bool,
    "phases?": [PHASE_SHAPE],
}
BEFORE_THE_START: dict[str, Any] = {
    "status": "not started",
    "step": 0,
    "consumed_samples": 0,
    "stage": 0,
    "next": None,
}


@dataclass(frozen=True, slots=True)
class RunDirectory(GuardedFolder):
    """`runs/NAME`, with the layout of docs/reference/run-directory.md."""

    KIND: ClassVar[str] = "run directory"

    def claim(self) -> None:
        """Makes and marks the folder, as `GuardedFolder.claim` does.

        Run directories of earlier versions have no marker. They are recognised by their config.yaml
        and state.json, and marked.
        """
        if not self.is_claimed():
            with suppress(DamagedFileError):
                if self.config.is_file() and self.read_state() is not None:
                    self.mark()
        GuardedFolder.claim(self)

    def refuse_links(self) -> None:
        """Checks that none of the run's files and folders is a symbolic link.

        Raises:
            UsageError: one of them is; the message names it.
        """
        for name in OWN_NAMES:
            if (self.path / name).is_symlink():
                raise link_refused(self.path / name)

    config = PathInside("config.yaml")
    """Snapshot of the configuration, which workers read."""
    state = PathInside("state.json")
    """The progress of the run when its processes started or ended last."""
    columns = PathInside("columns.json")
    """Metrics that observers of the run have declared."""
    metrics = PathInside("metrics.jsonl")
    """One row per optimiser step."""
    events = PathInside("events.jsonl")
    """One row per start, stage, checkpoint, validation, stop and fault."""
    responses = PathInside("responses.jsonl")
    """Some responses of reinforcement learning, with their rewards."""
    checkpoints = PathInside("checkpoints")
    """Parent of the checkpoint folders."""
    trackers = PathInside("trackers")
    """Folder of the trackers' files and positions."""
    profile = PathInside("profile")
    """Folder of the traces and memory snapshots."""
    lock = PathInside("lock")
    """Lock held by the run's supervisor."""
    logs = PathInside("logs")
    """Folder of the workers' output."""
    heartbeats = PathInside("heartbeats")
    """Folder in which each rank says what it does, while it runs."""

    @property
    def workers_lock(self) -> Path:
        """Lock shared by the run's workers, and by ranks of its trials, while they live."""
        return self.path / "workers.lock"

    def folder_of_phase(self, phase: str | None) -> "RunDirectory":
        """Returns the run directory of the searches of a phase; this one without phases."""
        if phase is None:
            return self
        return RunDirectory(self.path / TUNE_FOLDER / f"{PHASE_FOLDER}{phase}")

    @property
    def whole_run(self) -> "RunDirectory":
        """The run whose phase this folder is for, see `folder_of_phase`; otherwise this folder."""
        folder = self.path.parent
        is_of_phase = folder.name == TUNE_FOLDER and self.path.name.startswith(PHASE_FOLDER)
        return RunDirectory(folder.parent) if is_of_phase else self

    def checkpoint_folder(self, step: int) -> Path:
        """Returns the path of the checkpoint of `step`."""
        return self.checkpoints / name_of_step(step)

    def checkpoint_folders(self) -> list[Path]:
        """Returns the folders named after a step, oldest first, whether complete or not."""
        return sorted(
            (path for path in self.checkpoints.glob("step_*") if _STEP_FOLDER.fullmatch(path.name)),
            key=step_of,
        )

    def write_state(self, state: dict[str, Any]) -> None:
        """Replaces state.json."""
        self.write_json(self.state, state)

    def change_status(self, status: str, **facts: Any) -> None:
        """Replaces the status and the given facts in state.json, and drops an earlier error."""
        state = {
            key: value
            for key, value in (self.read_state() or BEFORE_THE_START).items()
            if key != "error"
        }
        self.write_state({**state, "status": status, **facts})

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Records an error that the block raises, as `record_failure` does."""
        try:
            yield
        except Exception as error:
            self.record_failure(error)
            raise

    def record_failure(self, error: Exception) -> None:
        """Sets the status in state.json to "failed", with the error.

        A RampcliError is understood. Any other error is a bug: it replaces no earlier error, and
        only the last line of its message is recorded.
        """
        state = self.read_state() or BEFORE_THE_START
        earlier = state["error"] if state["status"] == "failed" else None
        understood = isinstance(error, RampcliError)
        if earlier is None or (understood and not earlier["understood"]):
            known = error if isinstance(error, RampcliError) else RampcliError(last_line(error))
            self.change_status("failed", error=known.facts() | {"understood": understood})

    def read_state(self) -> dict[str, Any] | None:
        """Returns the content of state.json, or None if the run has not started.

        Raises:
            DamagedFileError: the file is damaged.
        """
        try:
            return _read(self.state, STATE, most_bytes=MAX_STATE_BYTES)
        except DamagedFileError as error:
            error.remedies = (
                f"delete {self.state}: the run resumes from its checkpoints without it",
            )
            raise

    def read_plan(self) -> dict[str, Any] | None:
        """Returns the content of plan.json, or None if there is none.

        Raises:
            DamagedFileError: the file is damaged.
        """
        return _read(self.path / "plan.json", PLAN_SHAPE, most_bytes=MAX_PLAN_BYTES)

    def read_columns(self) -> tuple[Metric, ...]:
        """Returns the metrics that observers of the run have declared, now or before a resume.

        Raises:
            DamagedFileError: columns.json is damaged.
        """
        content = _read(self.columns, COLUMNS_FILE, most_bytes=MAX_STATE_BYTES)
        return () if content is None else from_json(content)

    def write_columns(self, declared: Sequence[Metric]) -> None:
        """Adds metrics to columns.json. They replace earlier ones that do not fit beside them."""
        self.write_json(self.columns, columns_json(fitting([*declared, *self.read_columns()])))

    def last_written_at(self) -> float:
        """Returns when its state, metrics or events were last written, in seconds since 1970.

        0 if it has none of them.
        """
        times = [0.0]
        for path in (self.state, self.metrics, self.events):
            with suppress(OSError):
                times.append(path.stat(follow_symlinks=False).st_mtime)
        return max(times)

    def append_event(self, kind: str, **facts: Any) -> None:
        """Appends a row to events.jsonl."""
        self.append_row(self.events, event_row(kind, **facts))

    def events_at(self, step: int, kind: str) -> list[dict[str, Any]]:
        """Returns the rows of a kind in events.jsonl that belong to a step."""
        rows = read_rows(self.events)
        return [row for row in rows if row["event"] == kind and row.get("step") == step]

    def append_row(self, path: Path, row: dict[str, Any]) -> None:
        """Appends a row to a JSON lines file, replacing an incomplete last line. Thread-safe."""
        with APPEND_LOCK, self.open_to_append(path) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.truncate(end_of_rows(path))
            file.write(json.dumps(row).encode() + b"\n")

    def drop_rows_after(self, step: int) -> None:
        """Drops the metrics and responses after `step`, because those steps will be taken again.

        The event `lost` tells how much work that is.
        """
        for path in (self.metrics, self.responses):
            if not os.path.lexists(path):
                continue
            end = end_of_step(path, step)
            lost = lost_work(Tail(path, end).rows()) if path == self.metrics else None
            with self.open_to_append(path) as file:
                file.truncate(end)
                os.fsync(file.fileno())
            if lost is not None:
                self.append_event("lost", step=step, **lost)

    def set_metrics_aside(self) -> Path | None:
        """Renames metrics.jsonl, so that a run that starts from step 0 again keeps its old rows.

        Responses and the trackers' folder are renamed, too, even if there are no rows: a start that
        failed may have dropped them. Returns the new path of the metrics, or None without rows.
        """
        for path in (self.responses, self.trackers):
            if os.path.lexists(path):
                self.set_aside(path)
        if next(read_rows(self.metrics), None) is None:
            return None
        aside = self.set_aside(self.metrics)
        if (lost := lost_work(read_rows(aside))) is not None:
            self.append_event("lost", step=0, **lost)
        return aside

    def set_aside(self, path: Path) -> Path:
        """Renames a file to a free name with a number, such as metrics.1.jsonl, and returns it."""
        aside = next(name for name in _names_aside(path) if not os.path.lexists(name))
        self.rename(path, aside)
        return aside

    def files_aside(self, path: Path) -> list[Path]:
        """Returns where earlier files of this name are, newest first."""
        return list(takewhile(os.path.lexists, _names_aside(path)))[::-1]


def _read(path: Path, shape: dict[str, Any], *, most_bytes: int) -> dict[str, Any] | None:
    """Returns the content of a JSON file, or None if it does not exist."""
    with suppress(FileNotFoundError):
        content: dict[str, Any] = read_json(path, shape, most_bytes=most_bytes)
        return content
    return None


def last_line(error: Exception) -> str:
    """Returns the last line of a traceback: the kind of the error, and what it says."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


def _names_aside(path: Path) -> Iterator[Path]:
    return (path.with_suffix(f".{number}{path.suffix}") for number in range(1, MAX_OLD_FILES))


def event_row(kind: str, **facts: Any) -> dict[str, Any]:
    """Returns a row of events.jsonl for an event that happens now."""
    return {"event": kind, "time": round(time.time(), 3), **facts}


def existing_run(path: Path) -> RunDirectory:
    """Returns the run directory at a path.

    Raises:
        UsageError: there is no run directory.
    """
    run = RunDirectory(path)
    if not run.config.is_file():
        raise UsageError(
            f"{path} is not a run directory (it has no config.yaml)",
            remedy="runs/NAME, the directory of a run that has started",
        )
    return run


def find_run(word: str) -> RunDirectory:
    """Returns the run that a word names: the path of its directory, or a name below runs/.

    Raises:
        UsageError: there is no run directory.
    """
    path, below = Path(word), Path(RUNS, word)
    is_name = word not in ("", ".", "..") and "/" not in word
    if is_name and not RunDirectory(path).config.is_file() and below.is_dir():
        path = below
    return existing_run(path)


def runs_in(folder: Path) -> list[RunDirectory]:
    """Returns the run directories in a folder, the one that was written to last first.

    Folders of other programs, which may have a config.yaml too, are left out.
    """
    runs = []
    with suppress(OSError):
        for path in folder.iterdir():
            run = RunDirectory(path)
            with suppress(OSError):
                if run.config.is_file() and (run.is_claimed() or run.state.is_file()):
                    runs.append((run.last_written_at(), run))
    return [run for _, run in sorted(runs, key=lambda pair: (-pair[0], pair[1].path.name))]


def lost_work(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns how much work is lost if the steps of some metrics rows are repeated.

    None if there are no rows. The time of the last step is unknown in runs of earlier versions.
    """
    steps, lost_s, consumed_samples, row = 0, 0.0, 0, dict[str, Any]()
    for row in rows:
        if steps == 0:
            consumed_samples = row["consumed_samples"] - row["global_batch_size"]
        steps += 1
        lost_s += row["step_time_s"]
    if steps == 0:
        return None
    return {
        "consumed_samples": max(0, consumed_samples),
        "steps": steps,
        "lost_s": round(lost_s, 3),
        "last_step_at": row.get("time"),
    }


def name_of_step(step: int) -> str:
    """Returns the name of the folder of a checkpoint."""
    return f"step_{step:08d}"


def step_of(folder: Path) -> int:
    """Returns the step in the name of a checkpoint folder."""
    return int(folder.name.removeprefix("step_"))
