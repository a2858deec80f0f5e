"""The run directory: the files of a run and how they are written. JSON only; every file is whole or absent."""

import hashlib
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

MANIFEST = "manifest.json"
STAGE_BOUNDARY, COMPLETE, PREEMPTED = "stage_boundary", "complete", "preempted"
"""What state.json says of a run whose workers have ended as they should."""
STAGE_IS_OVER = (STAGE_BOUNDARY, COMPLETE)
PIECE_BYTES = 8 * 2**20
PAGE_BYTES = 4096
_ONE_ROW_AT_A_TIME = threading.Lock()
_STEP_FOLDER = re.compile(r"step_(\d{8,})")


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
        """What is wrong with the files, by size and, unless somebody else does that, by checksum; None where nothing is."""
        for name, file in self.files.items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != file["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {file['bytes']}"
            if by_checksum and not checksum_fits(path, file):
                return f"{name} has another checksum"
        return None

    def remove(self) -> None:
        """Delete it. Its manifest goes first, so that one that is half deleted is none."""
        (self.path / MANIFEST).unlink()
        shutil.rmtree(self.path)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """`runs/NAME`, as design and documents lay it out."""

    path: Path

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
        """Every checkpoint whose manifest is there, oldest first. Their tensors are not read."""
        found = []
        for path in self.checkpoints.glob("step_*"):
            if _STEP_FOLDER.fullmatch(path.name) and (path / MANIFEST).is_file():
                found.append(Checkpoint(path, json.loads((path / MANIFEST).read_text(encoding="utf-8"))))
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def consumed_samples(self) -> int:
        """Samples that are consumed where the newest complete checkpoint stands; 0 without one."""
        return max((checkpoint.consumed_samples for checkpoint in self.complete_checkpoints()), default=0)

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json."""
        write_json(self.path / "state.json", state)

    def change_status(self, status: str, **facts: Any) -> None:
        """Replace the status in state.json, and set some facts; an error of before is one no more."""
        state = {key: value for key, value in (self.read_state() or {}).items() if key != "error"}
        self.write_state({**state, "status": status, **facts})

    def read_state(self) -> dict[str, Any] | None:
        """state.json, or None where the run has not started."""
        with suppress(FileNotFoundError):
            state: dict[str, Any] = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
            return state
        return None

    def append_event(self, kind: str, **facts: Any) -> None:
        """Add a row to events.jsonl."""
        append_row(self.events, {"event": kind, "time": round(time.time(), 3), **facts})

    def remove_checkpoints(self, *, keep_last: int) -> None:
        """Delete what an interrupted save left behind, and all but the newest complete checkpoints."""
        for path in self.checkpoints.glob("step_*"):
            if not (_STEP_FOLDER.fullmatch(path.name) and (path / MANIFEST).is_file()):
                shutil.rmtree(path)
        for checkpoint in self.complete_checkpoints()[:-keep_last]:
            checkpoint.remove()

    def remove_checkpoints_from(self, step: int) -> None:
        """Delete the checkpoints of `step` and of those after it: the steps were taken again, because these could not be loaded."""
        for checkpoint in self.complete_checkpoints():
            if checkpoint.step >= step:
                checkpoint.remove()

    def forget_after(self, step: int) -> None:
        """Drop the rows of metrics.jsonl after `step`: the steps will be taken again."""
        rows = [row for row in read_rows(self.metrics) if row["step"] <= step]
        replace_file(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


class PageSums:
    """A checksum at the speed of memory, against damage rather than malice: the SHA-256 of sums.

    Each piece of `PIECE_BYTES`, the last one filled up with zeros to whole pages of 4096 bytes, is a table of 64-bit integers, little end
    first, with a page in each row. Summed, modulo 2^64, are its columns and its rows. So damage within one page of a piece is always
    found, and so are pages that are lost or in each other's place.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, piece: "memoryview | bytes") -> None:
        """Count in the next piece."""
        import numpy as np  # here, because most commands need none of it

        if len(piece) % PAGE_BYTES:
            piece = bytes(piece).ljust(-(-len(piece) // PAGE_BYTES) * PAGE_BYTES, b"\0")
        table = np.frombuffer(piece, dtype="<u8").reshape(-1, PAGE_BYTES // 8)
        for axis in (0, 1):
            self._digest.update(np.add.reduce(table, axis=axis).tobytes())

    def hexdigest(self) -> str:
        """The checksum, in hexadecimal."""
        return self._digest.hexdigest()


def page_sums(content: bytes) -> str:
    """`PageSums` of a whole file."""
    sums = PageSums()
    for begin in range(0, len(content), PIECE_BYTES):
        sums.update(content[begin : begin + PIECE_BYTES])
    return sums.hexdigest()


class Checksum(Protocol):
    """Counts in pieces of `PIECE_BYTES`, the last one shorter."""

    def update(self, piece: Any, /) -> object:
        """Count in the next piece."""

    def hexdigest(self) -> str:
        """The checksum, in hexadecimal."""


def expected_checksum(facts: Mapping[str, Any]) -> tuple[Checksum, str]:
    """What makes the checksum that a manifest gives a file, and that checksum. The first manifests have SHA-256."""
    return (PageSums(), facts["sums"]) if "sums" in facts else (hashlib.sha256(), facts["sha256"])


def checksum_fits(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a file has the checksum that a manifest gives it."""
    checksum, expected = expected_checksum(facts)
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            checksum.update(piece)
    return checksum.hexdigest() == expected


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON lines file."""
    return Tail(path).rows()


def loss_of(row: dict[str, Any]) -> float:
    """The loss of a row, for showing; one that is not finite stands there as null."""
    return math.nan if row["loss"] is None else float(row["loss"])


@dataclass(slots=True)
class Tail:
    """Reads the rows of a JSON lines file as they are added, from byte `offset` on; a last line without its end is no row yet."""

    path: Path
    offset: int = 0

    def skip(self) -> None:
        """Pass over the rows that are there. A last line that was cut off is not passed over: the next row takes its place."""
        if self.path.exists():
            self.offset = self.path.read_bytes().rfind(b"\n") + 1

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if line.endswith(b"\n"):
                    self.offset += len(line)
                    yield json.loads(line)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add one row to a JSON lines file; a last line that was cut off gives way to it. Threads may do so at a time."""
    with _ONE_ROW_AT_A_TIME, path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(row).encode() + b"\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file."""
    replace_file(path, json.dumps(content, indent=1) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a file aside, flush it to disk and rename it over `path`."""
    with _aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
        flush(aside)
        aside.rename(path)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
