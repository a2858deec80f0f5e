"""The run directory: the files of a run, how they are written, and how they are read. JSON only; every file is whole or absent."""

import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rampcli.checksums import PIECE_BYTES, checksum_fits
from rampcli.errors import DamagedFileError
from rampcli.own_folder import OwnFolder, link_refused, open_to_read
from rampcli.records import COUNT, POSITIVE, RATE, check_shape, parse_json, read_json

MANIFEST = "manifest.json"
STAGE_BOUNDARY, COMPLETE, PREEMPTED = "stage_boundary", "complete", "preempted"
"""What state.json says of a run whose workers have ended as they should."""
STAGE_IS_OVER = (STAGE_BOUNDARY, COMPLETE)
MOST_METRICS_ASIDE = 10_000
OWN_NAMES = (
    "config.yaml",
    "overrides.txt",
    "plan.json",
    "state.json",
    "metrics.jsonl",
    "events.jsonl",
    "checkpoints",
    "logs",
    "slurm",
)
MOST_ROW_BYTES = 2**20
MOST_STATE_BYTES = 2**20
_ONE_ROW_AT_A_TIME = threading.Lock()
_STEP_FOLDER = re.compile(r"step_(\d{8,18})", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}", re.ASCII)

TEXT_OR_NULL, NUMBER_OR_NULL = (str, None), (float, None)
NEXT = {"stage": COUNT, "global_batch_size": COUNT, "num_nodes": COUNT, "command": TEXT_OR_NULL}
FAILURE = {
    "message": str,
    "set_by": [str],
    "remedy": TEXT_OR_NULL,
    "exit_code": COUNT,
    "understood": bool,
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
SETTING = (str, bool, int, float, None, [(str, int, float)])
FILE = {"bytes": COUNT, "sums?": str, "sha256?": str}
CHECKPOINT = {
    "step": COUNT,
    "consumed_samples": COUNT,
    "order_hash": TEXT_OR_NULL,
    "recent?": [[float]],
    "corpus": str,
    "settings": {...: SETTING},
    "files": {...: FILE},
}
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
}
EVENT_ROW = {"event": str, "time": float}
EVENT_ROWS: dict[str, dict[str, Any]] = {
    "start": {"step": COUNT},
    "validation": {"step": COUNT, "consumed_samples": COUNT, "loss": NUMBER_OR_NULL},
    "stop": {"step": COUNT, "status": str, "save_s": float},
    **{kind: {"reason": str} for kind in ("fault", "slow_data", "spare_ranks")},
}
"""Shapes, as `rampcli.records` has them, of what readers rely on. Files may hold more."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder with a manifest, and what the manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Optimiser steps taken."""
        return int(self.manifest["step"])

    @property
    def consumed_samples(self) -> int:
        """Samples consumed."""
        return int(self.manifest["consumed_samples"])

    @property
    def files(self) -> dict[str, dict[str, Any]]:
        """The other files in the folder, by name: `bytes`, and a checksum, `sums` or `sha256`."""
        return dict(self.manifest["files"])

    def damage(self, *, by_checksum: bool = True) -> str | None:
        """Returns what is wrong with the files by size and, unless the caller does that, by checksum; None if nothing is."""
        for name, file in self.files.items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != file["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {file['bytes']}"
            if by_checksum and not checksum_fits(path, file):
                return f"{name} has another checksum"
        return None


@dataclass(frozen=True, slots=True)
class RunDirectory(OwnFolder):
    """`runs/NAME`, as docs/reference/run-directory.md lays it out."""

    KIND: ClassVar[str] = "run directory"

    def claim(self) -> None:
        """As `OwnFolder.claim`. A run directory of an earlier version has no marker; its config.yaml and state.json show what it is."""
        if not self.is_claimed():
            with suppress(DamagedFileError):
                if self.config.is_file() and self.read_state() is not None:
                    self.mark()
        OwnFolder.claim(self)

    def refuse_links(self) -> None:
        """Refuse a run directory in which a file or folder of a run is a symbolic link, before anything in it is changed.

        Raises:
            UsageError: names the link.
        """
        for name in OWN_NAMES:
            if (self.path / name).is_symlink():
                raise link_refused(self.path / name)

    @property
    def config(self) -> Path:
        """The snapshot that workers read."""
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
    def checkpoints(self) -> Path:
        """The folder of the checkpoint folders."""
        return self.path / "checkpoints"

    @property
    def lock(self) -> Path:
        """Held by who supervises the run."""
        return self.path / "lock"

    @property
    def workers_lock(self) -> Path:
        """Shared by the run's workers while they live."""
        return self.path / "workers.lock"

    @property
    def logs(self) -> Path:
        """What the workers printed."""
        return self.path / "logs"

    def checkpoint_folder(self, step: int) -> Path:
        """Where the checkpoint after `step` optimiser steps stands once it is complete."""
        return self.checkpoints / f"step_{step:08d}"

    def complete_checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints whose manifest can be read, oldest first. Their tensors are not read.

        Raises:
            DamagedFileError: there are manifests, and none of them can be read.
        """
        found, damaged = self.read_checkpoints()
        if damaged and not found:
            raise damaged[-1]
        return found

    def read_checkpoints(self) -> tuple[list[Checkpoint], list[DamagedFileError]]:
        """Returns the checkpoints whose manifest can be read, and what is wrong with the other manifests, both oldest first."""
        found, damaged = [], list[DamagedFileError]()
        for path in self._step_folders():
            try:
                found.append(_read_checkpoint(path))
            except FileNotFoundError:  # an interrupted save
                continue
            except DamagedFileError as error:
                damaged.append(error)
        return found, damaged

    def _step_folders(self) -> list[Path]:
        """Returns the folders of checkpoints, complete or not, oldest first."""
        found = [
            path for path in self.checkpoints.glob("step_*") if _STEP_FOLDER.fullmatch(path.name)
        ]
        return sorted(found, key=_step_of)

    def consumed_samples(self) -> int:
        """Returns how many samples the newest complete checkpoint has consumed; 0 without one."""
        return max(
            (checkpoint.consumed_samples for checkpoint in self.complete_checkpoints()), default=0
        )

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json."""
        self.write_json(self.path / "state.json", state)

    def change_status(self, status: str, **facts: Any) -> None:
        """Replace the status in state.json, and set some facts; an earlier error is dropped."""
        state = {
            key: value
            for key, value in (self.read_state() or BEFORE_THE_START).items()
            if key != "error"
        }
        self.write_state({**state, "status": status, **facts})

    def read_state(self) -> dict[str, Any] | None:
        """Returns state.json, or None if the run has not started.

        Raises:
            DamagedFileError: it is not what a run wrote.
        """
        path = self.path / "state.json"
        with suppress(FileNotFoundError):
            try:
                state: dict[str, Any] = read_json(path, STATE, most_bytes=MOST_STATE_BYTES)
            except DamagedFileError as error:
                error.remedy = f"delete {path}: the run resumes from its checkpoints without it"
                raise
            return state
        return None

    def append_event(self, kind: str, **facts: Any) -> None:
        """Add a row to events.jsonl."""
        self.append_row(self.events, {"event": kind, "time": round(time.time(), 3), **facts})

    def append_row(self, path: Path, row: dict[str, Any]) -> None:
        """Add one row to a JSON lines file. A last line that was cut off is dropped first. Threads may call this at the same time."""
        with _ONE_ROW_AT_A_TIME, self.open_to_append(path) as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.truncate(_end_of_rows(path))
            file.write(json.dumps(row).encode() + b"\n")

    def remove_checkpoints(self, *, keep_last: int) -> None:
        """Delete interrupted saves and, once there are `keep_last` complete checkpoints, all that are older, also damaged ones."""
        for path in self.checkpoints.glob("step_*"):
            if not (_STEP_FOLDER.fullmatch(path.name) and (path / MANIFEST).is_file()):
                self.remove_tree(path)
        complete = self.complete_checkpoints()
        for path in self._step_folders() if len(complete) >= keep_last else ():
            if _step_of(path) < complete[-keep_last].step:
                self._remove_checkpoint(path)

    def remove_checkpoints_from(self, step: int) -> None:
        """Delete the checkpoints of `step` and later ones: they could not be loaded, and their steps were taken again."""
        for path in self._step_folders():
            if _step_of(path) >= step:
                self._remove_checkpoint(path)

    def _remove_checkpoint(self, path: Path) -> None:
        """Delete its manifest first, so that a checkpoint that is half deleted is not complete."""
        if not path.is_symlink():
            self.remove_file(path / MANIFEST)
        self.remove_tree(path)

    def forget_after(self, step: int) -> None:
        """Drop the rows of metrics.jsonl after `step`: these steps will be taken again."""
        rows = [row for row in read_rows(self.metrics) if row["step"] <= step]
        self.replace(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def set_metrics_aside(self) -> Path | None:
        """Rename metrics.jsonl, so that a run that begins anew does not drop its rows. Returns the new path; None if it has no rows."""
        if next(read_rows(self.metrics), None) is None:
            return None
        names = (self.path / f"metrics.{number}.jsonl" for number in range(1, MOST_METRICS_ASIDE))
        aside = next(name for name in names if not os.path.lexists(name))
        self.rename(self.metrics, aside)
        return aside


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def _read_checkpoint(path: Path) -> Checkpoint:
    """Read a manifest, and check that it is of this folder and names plain files, each with a checksum.

    Raises:
        FileNotFoundError: the folder has no manifest.
        DamagedFileError: it is not what a save wrote.
    """
    manifest = read_json(path / MANIFEST, CHECKPOINT)
    if manifest["step"] != _step_of(path):
        raise DamagedFileError(f"{path / MANIFEST} is damaged: it is of step {manifest['step']}")
    for name, facts in manifest["files"].items():
        if not _PLAIN_NAME.fullmatch(name):
            raise DamagedFileError(
                f"{path / MANIFEST} is damaged: {name!r} is not the name of a file beside it"
            )
        if not {"sums", "sha256"} & facts.keys():
            raise DamagedFileError(f"{path / MANIFEST} is damaged: it has no checksum of {name}")
    if any(len(pair) != 2 for pair in manifest.get("recent", ())):
        raise DamagedFileError(f"{path / MANIFEST} is damaged: recent is not a list of pairs")
    return Checkpoint(path, manifest)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Gives the rows of metrics.jsonl or events.jsonl. Raises as `Tail.rows`."""
    return Tail(path).rows()


def loss_of(row: dict[str, Any]) -> float:
    """Returns the loss of a row, for showing; one that is not finite is written as null."""
    return math.nan if row["loss"] is None else float(row["loss"])


@dataclass(slots=True)
class Tail:
    """Reads the rows of a JSON lines file as they are added, from byte `offset` on. A last line without its end is not a row yet."""

    path: Path
    offset: int = 0

    def skip(self) -> None:
        """Pass over the rows that are there, but not over a last line that was cut off: the next row replaces it."""
        with suppress(FileNotFoundError):
            self.offset = _end_of_rows(self.path)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Gives the rows since the last call.

        Raises:
            DamagedFileError: one of them is not what a run wrote.
        """
        shape = METRICS_ROW if self.path.name.startswith("metrics.") else EVENT_ROW
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DamagedFileError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            file.seek(self.offset)
            while (line := file.readline(MOST_ROW_BYTES)).endswith(b"\n"):
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
        if len(line) == MOST_ROW_BYTES:
            raise DamagedFileError(
                f"{self.path} is damaged: a line is longer than {MOST_ROW_BYTES:,} bytes"
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
