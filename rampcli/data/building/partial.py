"""PREFIX.building: what a build has written so far, and where it goes on from.

Only what progress.json counts is there. What was written after it is cut off when the build goes on, and encoded again.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.encoding import Encoded
from rampcli.data.building.records import Chunk, Position
from rampcli.errors import RampcliError, UsageError
from rampcli.own_folder import flush, write_json

LENGTHS_AT_ONCE = 1 << 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """How far a build is: all that its files hold.

    Attributes:
        position: where reading goes on.
        consumed_bytes: of the inputs up to there, as they are on the disk.
        tokens: in all documents.
        documents: that have ended.
        open_tokens: of the text that goes on.
        empty: documents without a token.
        largest_token: None before the first.
        text_bytes: encoded so far, in UTF-8.
        skipped: bad records.
        skipped_bytes: of their list.
        is_complete: nothing is missing but the names.
    """

    position: Position = field(default_factory=Position)
    consumed_bytes: int = 0
    tokens: int = 0
    documents: int = 0
    open_tokens: int = 0
    empty: int = 0
    largest_token: int | None = None
    text_bytes: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class PartialBuild:
    """The folder of a build that is not done. Use it as `with partial.locked(): with partial.opened(kind): ...`."""

    path: Path
    written: Written = field(default_factory=Written)
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _saved: Written | None = None

    @property
    def tokens(self) -> Path:
        """Tokens end to end."""
        return self.path / "tokens.bin"

    @property
    def lengths(self) -> Path:
        """Documents' lengths in tokens, int64."""
        return self.path / "lengths.bin"

    @property
    def skipped(self) -> Path:
        """Bad records."""
        return self.path / "skipped.jsonl"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer; whole, or not there."""
        return self.path / "tokenizer.json"

    @property
    def progress(self) -> Path:
        """What the other files hold, and what they are made from."""
        return self.path / "progress.json"

    @property
    def settings(self) -> Path:
        """What the build is made from."""
        return self.path / "settings.json"

    @property
    def index(self) -> Path:
        """The index, once all is encoded."""
        return self.path / "index.idx"

    @property
    def manifest(self) -> Path:
        """The manifest, once all is encoded."""
        return self.path / "manifest.json"

    @property
    def has_text(self) -> bool:
        """Whether anything of the inputs is behind."""
        return self.written.position != Position()

    def is_taking_names(self) -> bool:
        """Whether all is written, and files may have their names already."""
        with suppress(OSError, ValueError, TypeError):
            return json.loads(self.progress.read_text(encoding="utf-8"))["is_complete"] is True
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other builds out of it. A folder without progress is removed at the end.

        Raises:
            UsageError: another build is at work.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                name = self.path.with_suffix("")
                raise UsageError(f"another build of {name} is at work", remedy="wait for it, or another --output") from error
            try:
                yield
            finally:
                if not self.progress.is_file():
                    self.remove()

    def remove(self) -> None:
        """Delete the folder; the lock last, so that nobody begins anew in what is half gone."""
        for path in self.path.iterdir():
            if path.name != "lock":
                path.unlink() if not path.is_dir() else shutil.rmtree(path)
        (self.path / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def begin(self, settings: dict[str, Any]) -> bool:
        """Read how far the build is, or begin it.

        Returns:
            Whether there is something to go on with.

        Raises:
            UsageError: it was begun with other inputs or options, or its files are damaged.
        """
        if not self.progress.is_file():
            return self._begin_anew(settings)
        try:
            found = json.loads(self.settings.read_text(encoding="utf-8"))
            state = json.loads(self.progress.read_text(encoding="utf-8"))
            self.written = Written(**{**state, "position": Position(**state["position"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise self._refused(f"the half-done build in {self.path} is damaged: {error}") from error
        # Up to now nothing was bad, or it would have stopped: with --on-bad-record skip it would stand at the same place.
        if (found.get("on_bad_record"), settings["on_bad_record"]) == ("stop", "skip"):
            found["on_bad_record"] = "skip"
        changed = _differences(found, settings)
        if changed and not self.has_text:
            return self._begin_anew(settings)
        if changed:
            raise self._refused(f"{'; '.join(changed)} since the build in {self.path} was begun")
        write_json(self.settings, settings)
        self._saved = self.written
        return True

    def _begin_anew(self, settings: dict[str, Any]) -> bool:
        self.tokenizer.unlink(missing_ok=True)
        self.written = Written()
        write_json(self.settings, settings)
        return False

    def _refused(self, message: str) -> UsageError:
        return UsageError(message, remedy=f"as it was, to go on; or delete {self.path} to begin anew")

    @contextmanager
    def opened(self, kind: np.dtype[Any]) -> Iterator[None]:
        """Open the files to add to; cut off what is not counted.

        Raises:
            UsageError: they hold less than is counted.
        """
        written = self.written
        sizes = {self.tokens: written.tokens * kind.itemsize, self.lengths: written.documents * 8, self.skipped: written.skipped_bytes}
        try:
            for path, size in sizes.items():
                file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
                self._files[path.name] = file
                if file.seek(0, os.SEEK_END) < size:
                    raise self._refused(f"{path} is shorter than {self.progress.name} says")
                file.truncate(size)
                file.seek(size)
            yield
        finally:
            for file in self._files.values():
                with suppress(OSError):  # of a full disk, which was said before
                    file.close()
            self._files.clear()

    def add(self, chunk: Chunk, encoded: Encoded, *, eod: int | None, names: Sequence[str]) -> None:
        """Write what came of the next chunk."""
        before = self.written
        tokens, lengths, open_tokens, empty = encoded.tokens, encoded.lengths, before.open_tokens, encoded.empty
        if chunk.is_piece:
            tokens, lengths, open_tokens = _after_piece(tokens, before.open_tokens, eod, closes=chunk.slices[0].closes)
            empty = int(chunk.slices[0].closes and not len(lengths))
        rows = [{"file": names[bad.input], "line": bad.line, "reason": bad.reason} for bad in encoded.bad]
        listed = "".join(json.dumps(row) + "\n" for row in rows).encode()
        for path, content in ((self.tokens, tokens.tobytes()), (self.lengths, lengths.tobytes()), (self.skipped, listed)):
            self._files[path.name].write(content)
        self.written = Written(
            position=chunk.end,
            consumed_bytes=chunk.consumed_bytes,
            tokens=before.tokens + len(tokens),
            documents=before.documents + len(lengths),
            open_tokens=open_tokens,
            empty=before.empty + empty,
            largest_token=max((int(tokens.max()), before.largest_token or 0)) if len(tokens) else before.largest_token,
            text_bytes=before.text_bytes + encoded.text_bytes,
            skipped=before.skipped + len(rows),
            skipped_bytes=before.skipped_bytes + len(listed),
        )

    def save(self, *, is_complete: bool = False) -> None:
        """Wait until all is on the disk, then count it."""
        written = replace(self.written, is_complete=is_complete or self.written.is_complete)
        if written == self._saved:
            return
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        write_json(self.progress, asdict(written))
        self.written = self._saved = written

    def blocks_of_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Documents' lengths, some at a time."""
        with self.lengths.open("rb") as file:
            while len(block := np.fromfile(file, dtype=np.int64, count=LENGTHS_AT_ONCE)):
                yield block


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Let an error of writing say where, and that the build goes on from there.

    Raises:
        RampcliError: instead of an error of the operating system.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise RampcliError(
            f"cannot write {where}: {error.strerror or error}", remedy="room and permission; the same command goes on"
        ) from error


def take_name(path: Path, name: Path) -> None:
    """Let a file of the folder have its name, if it does not have it yet."""
    if path.exists():
        flush(path)
        path.rename(name)
        flush(name.parent)


def _after_piece(tokens: NDArray[Any], open_tokens: int, eod: int | None, *, closes: bool) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """What a piece of a text adds: tokens, the lengths of documents that end, and how long the one is that goes on."""
    total = open_tokens + len(tokens)
    if not closes or not total:
        return tokens, np.empty(0, dtype=np.int64), total
    if eod is not None:
        tokens = np.append(tokens, np.array(eod, dtype=tokens.dtype))
    return tokens, np.array([open_tokens + len(tokens)], dtype=np.int64), 0


def _differences(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    changed = []
    before, now = ({one["name"]: one for one in of["inputs"]} for of in (found, settings))
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            changed.append(f"{name} {'was added' if name not in before else 'is no input any more' if name not in now else 'has changed'}")
    if not changed and [*before] != [*now]:
        changed.append("the order of the inputs has changed")
    for key, value in settings.items():
        if key != "inputs" and found.get(key) != value:
            changed.append(f"{key} was {found.get(key)} and is {value}")
    return changed[:5] + ([f"and {len(changed) - 5} more have changed"] if len(changed) > 5 else [])
