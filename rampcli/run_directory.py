"""The run directory: paths of its files, and reading and writing of its JSON files.

Every file is JSON or text. state.json is replaced as a whole, so a reader sees the old or the new
state. Rows of metrics.jsonl and events.jsonl are appended; an incomplete last line is ignored.
"""

import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from rampcli.checksums import PIECE_BYTES
from rampcli.errors import DamagedFileError, UsageError
from rampcli.own_folder import OwnFolder, link_refused, open_to_read
from rampcli.records import COUNT, POSITIVE, RATE, check_shape, parse_json, read_json

STAGE_BOUNDARY, COMPLETE, PREEMPTED = "stage_boundary", "complete", "preempted"
"""Values of `status` in state.json if workers have ended in an orderly way."""
STAGE_IS_OVER = (STAGE_BOUNDARY, COMPLETE)
MAX_OLD_FILES = 10_000
OWN_NAMES = (
    "config.yaml",
    "overrides.txt",
    "plan.json",
    "state.json",
    "metrics.jsonl",
    "events.jsonl",
    "responses.jsonl",
    "checkpoints",
    "logs",
    "slurm",
    "tune.json",
    "tune",
)
MAX_ROW_BYTES = 2**20
MAX_STATE_BYTES = 2**20
_APPEND_LOCK = threading.Lock()
_STEP_FOLDER = re.compile(r"step_(\d{8,18})", re.ASCII)

# Shapes, in the notation of `rampcli.records`, of the fields that readers rely on. Files may hold
# more.
TEXT_OR_NULL, NUMBER_OR_NULL = (str, None), (float, None)
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
BEFORE_THE_START: dict[str, Any] = {
    "status": "not started",
    "step": 0,
    "consumed_samples": 0,
    "stage": 0,
    "next": None,
}
EVALUATED = ("greedy", "greedy_solved", "sampled", "sampled_solved")
"""Results of an evaluation: the mean reward of held-out prompts, and the share that is solved."""
METRICS_ROW = {
    "step": COUNT,
    "stage": COUNT,
    "consumed_samples": COUNT,
    "global_batch_size": COUNT,
    "accumulate_grad_batches": POSITIVE,
    "world_size": POSITIVE,
    "loss": NUMBER_OR_NULL,
    "step_time_s": RATE,
    "samples_per_s": RATE,
    "tokens_per_s": RATE,
    "pairs?": POSITIVE,
    "reward?": NUMBER_OR_NULL,
    "solved?": NUMBER_OR_NULL,
    "rollout_ranks?": COUNT,
    "rollout_s?": RATE,
    "training_s?": RATE,
    "predicted_s?": RATE,
}
RESPONSES_ROW = {"step": COUNT}
EVENT_ROW = {"event": str, "time": float}
EVENT_ROWS: dict[str, dict[str, Any]] = {
    "start": {"step": COUNT, "device?": str, "device_name?": TEXT_OR_NULL},
    "boundary": {"lost_s": float},
    "validation": {"step": COUNT, "consumed_samples": COUNT, "loss": NUMBER_OR_NULL},
    "evaluation": {
        "step": COUNT,
        "consumed_samples": COUNT,
        **dict.fromkeys(EVALUATED, NUMBER_OR_NULL),
        "unscored?": COUNT,
        "reason?": TEXT_OR_NULL,
    },
    "stop": {"step": COUNT, "status": str, "save_s": float},
    **{kind: {"reason": str} for kind in ("fault", "slow_data", "spare_ranks")},
}
SHAPES: dict[str, dict[str, Any]] = {"metrics": METRICS_ROW, "responses": RESPONSES_ROW}
"""Shapes of rows by the beginning of their file's name. Other files have events."""


@dataclass(frozen=True, slots=True)
class RunDirectory(OwnFolder):
    """`runs/NAME`, with the layout of docs/reference/run-directory.md."""

    KIND: ClassVar[str] = "run directory"

    def claim(self) -> None:
        """Makes and marks the folder, as `OwnFolder.claim` does.

        Run directories of earlier versions have no marker. They are recognised by their config.yaml
        and state.json, and marked.
        """
        if not self.is_claimed():
            with suppress(DamagedFileError):
                if self.config.is_file() and self.read_state() is not None:
                    self.mark()
        OwnFolder.claim(self)

    def refuse_links(self) -> None:
        """Checks that none of the run's files and folders is a symbolic link.

        Raises:
            UsageError: one of them is; the message names it.
        """
        for name in OWN_NAMES:
            if (self.path / name).is_symlink():
                raise link_refused(self.path / name)

    @property
    def config(self) -> Path:
        """Snapshot of the configuration, which workers read."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One row per optimiser step."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """One row per start, stage, checkpoint, validation, stop and fault."""
        return self.path / "events.jsonl"

    @property
    def responses(self) -> Path:
        """Some responses of reinforcement learning, with their rewards."""
        return self.path / "responses.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Parent of the checkpoint folders."""
        return self.path / "checkpoints"

    @property
    def lock(self) -> Path:
        """Lock held by the run's supervisor."""
        return self.path / "lock"

    @property
    def workers_lock(self) -> Path:
        """Lock shared by the run's workers, and by ranks of its trials, while they live."""
        return self.path / "workers.lock"

    @property
    def logs(self) -> Path:
        """Folder of the workers' output."""
        return self.path / "logs"

    def checkpoint_folder(self, step: int) -> Path:
        """Returns the path of the checkpoint of `step`."""
        return self.checkpoints / f"step_{step:08d}"

    def checkpoint_folders(self) -> list[Path]:
        """Returns the folders named after a step, oldest first, whether complete or not."""
        return sorted(
            (path for path in self.checkpoints.glob("step_*") if _STEP_FOLDER.fullmatch(path.name)),
            key=step_of,
        )

    def write_state(self, state: dict[str, Any]) -> None:
        """Replaces state.json."""
        self.write_json(self.path / "state.json", state)

    def change_status(self, status: str, **facts: Any) -> None:
        """Replaces the status and the given facts in state.json, and drops an earlier error."""
        state = {
            key: value
            for key, value in (self.read_state() or BEFORE_THE_START).items()
            if key != "error"
        }
        self.write_state({**state, "status": status, **facts})

    def read_state(self) -> dict[str, Any] | None:
        """Returns the content of state.json, or None if the run has not started.

        Raises:
            DamagedFileError: the file is damaged.
        """
        path = self.path / "state.json"
        with suppress(FileNotFoundError):
            try:
                state: dict[str, Any] = read_json(path, STATE, most_bytes=MAX_STATE_BYTES)
            except DamagedFileError as error:
                error.remedy = f"delete {path}: the run resumes from its checkpoints without it"
                raise
            return state
        return None

    def append_event(self, kind: str, **facts: Any) -> None:
        """Appends a row to events.jsonl."""
        self.append_row(self.events, {"event": kind, "time": round(time.time(), 3), **facts})

    def append_row(self, path: Path, row: dict[str, Any]) -> None:
        """Appends a row to a JSON lines file, replacing an incomplete last line. Thread-safe."""
        with _APPEND_LOCK, self.open_to_append(path) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.truncate(_end_of_rows(path))
            file.write(json.dumps(row).encode() + b"\n")

    def drop_rows_after(self, step: int) -> None:
        """Drops the metrics and responses after `step`, because those steps will be taken again."""
        paths = [self.metrics, *([self.responses] if os.path.lexists(self.responses) else [])]
        for path in paths:
            rows = [row for row in read_rows(path) if row["step"] <= step]
            self.replace(path, "".join(json.dumps(row) + "\n" for row in rows))

    def set_metrics_aside(self) -> Path | None:
        """Renames metrics.jsonl, so that a run that starts from step 0 again keeps its old rows.

        Responses are renamed with them. Returns the new path of the metrics, or None if there are
        no rows.
        """
        if next(read_rows(self.metrics), None) is None:
            return None
        if os.path.lexists(self.responses):
            self.set_aside(self.responses)
        return self.set_aside(self.metrics)

    def set_aside(self, path: Path) -> Path:
        """Renames a file to a free name with a number, such as metrics.1.jsonl, and returns it."""
        aside = next(name for name in _names_aside(path) if not os.path.lexists(name))
        self.rename(path, aside)
        return aside

    def files_aside(self, path: Path) -> list[Path]:
        """Returns where earlier files of this name are, newest first."""
        return list(takewhile(os.path.lexists, _names_aside(path)))[::-1]


def _names_aside(path: Path) -> Iterator[Path]:
    return (path.with_suffix(f".{number}{path.suffix}") for number in range(1, MAX_OLD_FILES))


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


def step_of(folder: Path) -> int:
    """Returns the step in the name of a checkpoint folder."""
    return int(folder.name.removeprefix("step_"))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a JSON lines file of a run. Raises what `Tail.rows` raises."""
    return Tail(path).rows()


def loss_of(row: dict[str, Any]) -> float:
    """Returns the loss of a metrics row: NaN if it is null, which stands for not finite."""
    return math.nan if row["loss"] is None else float(row["loss"])


@dataclass(slots=True)
class Tail:
    """Reads the rows of a JSON lines file as they are appended.

    Attributes:
        path: metrics.jsonl, responses.jsonl or events.jsonl.
        offset: byte after the last row that was read.
    """

    path: Path
    offset: int = 0

    def skip(self) -> None:
        """Skips all complete rows. The next row will replace an incomplete last line."""
        with suppress(FileNotFoundError):
            self.offset = _end_of_rows(self.path)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows that were appended since the last call.

        Raises:
            DamagedFileError: a row is damaged.
        """
        shape = SHAPES.get(self.path.name.partition(".")[0], EVENT_ROW)
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DamagedFileError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            file.seek(self.offset)
            while (line := file.readline(MAX_ROW_BYTES)).endswith(b"\n"):
                where = f"{self.path}, byte {self.offset:,},"
                try:
                    row = parse_json(line, shape, where=where)
                    if shape is EVENT_ROW:
                        check_shape(row, EVENT_ROWS.get(row["event"], {}), where=where)
                except DamagedFileError as error:
                    error.remedy = f"move {self.path} away: the run resumes without its rows"
                    raise
                self.offset += len(line)
                yield row
        if len(line) == MAX_ROW_BYTES:
            raise DamagedFileError(
                f"{self.path} is damaged: a line is longer than {MAX_ROW_BYTES:,} bytes"
            )


def _end_of_rows(path: Path) -> int:
    """Returns the byte after the last complete line."""
    with open_to_read(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - PIECE_BYTES)
            file.seek(begin)
            if (last := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + last + 1
            end = begin
    return 0
