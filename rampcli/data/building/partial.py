"""The folder and the progress of an unfinished build, from which it resumes.

Only what progress.json counts is valid. Anything written after it is truncated and encoded again
when the build resumes.
"""

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from io import BufferedRandom
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.encoding import Encoded
from rampcli.data.building.records import Chunk, Cursor
from rampcli.data.indexed import BUILD_SETTINGS, MOST_MANIFEST_BYTES
from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.files.guarded_folder import GuardedFolder, PathInside
from rampcli.files.records import ANY, COUNT, read_json

PROGRESS_SHAPE = {**BUILD_SETTINGS, "inputs": [{"name": str, "bytes": COUNT, "mtime_ns": ANY}]}
"""Shape of settings.json."""
OPTION_TITLES = {"tokenizer_sha256": "the SHA-256 checksum of --tokenizer", "eod_option": "--eod"}
"""Settings that messages do not name like their options."""
SAVE_EVERY_S = 2.0
LENGTHS_AT_ONCE = 1 << 17
CHANGES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class BuildFolder(GuardedFolder):
    """Folder of an unfinished build.

    It lies beside the files that the build writes, and is removed once they are in place.
    """

    KIND: ClassVar[str] = "build"

    lock = PathInside("lock")
    """The lock; the building process holds it."""
    tokens = PathInside("tokens.bin")
    """The tokens, concatenated."""
    lengths = PathInside("lengths.bin")
    """The documents' lengths in tokens, int64."""
    skipped = PathInside("skipped.jsonl")
    """The list of bad records."""
    tokenizer = PathInside("tokenizer.json")
    """The tokenizer; replaced atomically."""
    progress = PathInside("progress.json")
    """The valid size of the other files, and the position at which reading resumes."""
    gathered = PathInside("gathered.json")
    """The progress of gathering what the tokenizer is made from."""
    sample = PathInside("sample.jsonl")
    """Text for a BPE tokenizer to learn from, as strings of JSON."""
    settings = PathInside("settings.json")
    """The inputs and options of the build."""
    index = PathInside("index.idx")
    """The index; written after encoding."""
    manifest = PathInside("manifest.json")
    """The manifest; written after encoding."""

    def claim(self) -> None:
        """Claims the folder as `GuardedFolder.claim` does, and refuses a link in its place.

        The build removes the folder in the end, so it must not be a link.
        """
        GuardedFolder(self.path.parent).make_folder(self.path)
        GuardedFolder.claim(self)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes and locks the folder; removes it after the block if it holds no progress.

        Raises:
            UsageError: the folder is not ours, it or its lock is a symbolic link, or another build
                is running.
        """
        self.claim()
        with os.fdopen(self.open(self.lock, os.O_RDWR | os.O_CREAT), "r+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                name = self.path.with_suffix("")
                raise UsageError(
                    f"another build of {name} is running", remedy="wait for it, or another --output"
                ) from error
            self.mark()  # a build that ended meanwhile may have removed the marker
            try:
                yield
            finally:
                if not (os.path.lexists(self.progress) or os.path.lexists(self.gathered)):
                    self._remove()

    def _remove(self) -> None:
        """Deletes the folder, the lock and the marker last, so that no build starts meanwhile."""
        for name in os.listdir(self.path):
            if self.path / name not in (self.lock, self.marker):
                self.remove_tree(self.path / name)
        self.remove_file(self.lock)
        self.remove_file(self.marker)
        with suppress(OSError):
            self.path.rmdir()

    def remove_leftovers(self) -> None:
        """Deletes the folder of a complete build that was killed before it could do so.

        Does nothing if the folder is not ours or is in use.
        """
        if self.is_claimed():
            with suppress(OSError, UsageError), self.locked():
                self.remove_file(self.progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How far a pass over the inputs has come.

    Attributes:
        position: position in the inputs at which reading resumes.
        consumed_bytes: size of the inputs before that position, as stored.
    """

    position: Cursor = field(default_factory=Cursor)
    consumed_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenCounts(Counts):
    """Counts of what a build has written so far, as in progress.json.

    Attributes:
        documents: number of documents that have ended.
        open_tokens: tokens of a text whose last piece is still to come.
        empty: number of documents without tokens.
        largest_token: largest token, or None before the first.
        skipped_bytes: size of skipped.jsonl.
        is_complete: True if the files only need to be moved into place.
    """

    tokens: int = 0
    documents: int = 0
    open_tokens: int = 0
    empty: int = 0
    largest_token: int | None = None
    text_bytes: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    is_complete: bool = False


class Watcher:
    """Receives the progress of a build. This base class ignores it."""

    def on_phase(self, name: str, total_bytes: int) -> None:
        """Called when a pass over the inputs begins."""

    def on_progress(self, consumed_bytes: int, written: WrittenCounts | None) -> None:
        """Called after each chunk.

        Args:
            consumed_bytes: bytes of the inputs read in this pass.
            written: what has been written so far, or None if this pass writes nothing.
        """

    def on_note(self, line: str) -> None:
        """Called with a decision or a warning for the user."""


COUNTS_SHAPES = {
    "position": dict.fromkeys(Cursor.__slots__, COUNT),
    "largest_token": (COUNT, None),
    "is_complete": bool,
    "phase": str,
    "characters": str,
}
"""Shapes of counts that are not whole numbers, for `rampcli.files.records.check_shape`."""
Counted = TypeVar("Counted", bound=Counts)


def read_counts(path: Path, kind: type[Counted], *, inputs: int) -> Counted | None:
    """Returns the counts in a file of a build, or None if the file does not exist.

    Raises:
        DamagedFileError: the file cannot be read, has another shape, or names an input that is not
            one of the `inputs`.
    """
    shape = {one.name: COUNTS_SHAPES.get(one.name, COUNT) for one in fields(kind)}
    try:
        state = read_json(path, shape, most_bytes=MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    position = Cursor(*(state["position"][name] for name in Cursor.__slots__))
    if position.input > inputs:
        raise DamagedFileError(f"{path} is damaged: there is no input {position.input:,}")
    # The file may hold more, which another version has written.
    return kind(**{name: state[name] for name in shape} | {"position": position})


@dataclass(slots=True)
class Saved(Generic[Counted]):
    """Counts of a pass over the inputs, and the files whose valid size they tell.

    Attributes:
        path: the file that the counts are saved in.
        files: the open files, by their paths.
    """

    folder: BuildFolder
    path: Path
    counts: Counted
    files: dict[Path, BufferedRandom] = field(default_factory=dict, init=False)
    _save_at: float = field(default=0.0, init=False)

    @contextmanager
    def appending(self, sizes: Mapping[Path, int]) -> Iterator[None]:
        """Opens files for appending, after truncating them to these sizes.

        Raises:
            UsageError: a file is shorter, or is a symbolic link.
        """
        try:
            for path, size in sizes.items():
                file = os.fdopen(self.folder.open(path, os.O_RDWR | os.O_CREAT), "r+b")
                self.files[path] = file
                if file.seek(0, os.SEEK_END) < size:
                    reason = f"{path} is shorter than {self.path.name} says"
                    raise cannot_resume(self.folder, reason)
                file.truncate(size)
                file.seek(size)
            yield
        finally:
            for file in self.files.values():
                with suppress(OSError):  # a full disk, which an earlier write has reported
                    file.close()
            self.files.clear()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Saves the progress at the end of the block, and on an error if there is any progress.

        In between, `advance` saves it every `SAVE_EVERY_S` seconds.
        """
        self._save_at = time.monotonic() + SAVE_EVERY_S
        try:
            yield
        except BaseException:
            if self.counts.position != Cursor():
                with suppress(OSError):  # on a full disk, the last save remains
                    self.save()
            raise
        self.save()

    def advance(self, counts: Counted) -> None:
        """Takes the counts after a chunk, and saves them if it is time."""
        self.counts = counts
        if time.monotonic() >= self._save_at:
            self.save()
            self._save_at = time.monotonic() + SAVE_EVERY_S

    def save(self) -> None:
        """Flushes the files to disk, then saves the counts."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        self.folder.write_json(self.path, asdict(self.counts))


def is_complete(folder: BuildFolder) -> bool:
    """Returns True if the build is complete; some of its files may already be in place."""
    with suppress(OSError, DamagedFileError):
        written = read_counts(folder.progress, WrittenCounts, inputs=sys.maxsize)
        return folder.is_claimed() and written is not None and written.is_complete
    return False


class PartialBuild(Saved[WrittenCounts]):
    """An unfinished build. Use it as `with folder.locked(): with partial.opened(kind): ...`.

    Attributes:
        tokens_digest: SHA-256 of the tokens so far, computed while workers encode.
    """

    def __init__(self, folder: BuildFolder) -> None:
        super().__init__(folder, folder.progress, WrittenCounts())
        self.tokens_digest = hashlib.sha256()

    def begin(self, settings: dict[str, Any], watcher: Watcher) -> bool:
        """Reads the progress of an earlier start, or starts the build.

        If inputs or options have changed before anything was encoded, the build begins again, and a
        note says so.

        Returns:
            True if the build resumes.

        Raises:
            UsageError: it was started with other inputs or options, or its files are damaged.
        """
        folder = self.folder
        if not (os.path.lexists(folder.progress) or os.path.lexists(folder.gathered)):
            return self._start(settings)
        try:
            found = read_json(folder.settings, PROGRESS_SHAPE, most_bytes=MOST_MANIFEST_BYTES)
            written = read_counts(folder.progress, WrittenCounts, inputs=len(found["inputs"]))
        except DamagedFileError as error:
            raise cannot_resume(folder, error.message) from error
        except FileNotFoundError as error:
            raise cannot_resume(folder, f"{folder.settings} is missing") from error
        self.counts = written or WrittenCounts()
        changed = _changes(_as_skipping(found, settings), settings)
        if changed and self.counts.position == Cursor():
            watcher.on_note(f"note: {'; '.join(changed)}; the build begins again")
            self.remove_gathered()
            return self._start(settings)
        if changed:
            raise UsageError(
                f"the build in {self.folder.path} was started differently: {'; '.join(changed)}",
                remedy="the inputs and options it was started with, or delete"
                f" {self.folder.path} to start again",
            )
        if written is None:
            return self._start(settings)
        if not written.is_complete:
            self.folder.write_json(self.folder.settings, settings)
        return True

    def _start(self, settings: dict[str, Any]) -> bool:
        self.folder.remove_file(self.folder.tokenizer)
        self.counts = WrittenCounts()
        self.folder.write_json(self.folder.settings, settings)
        return False

    def remove_gathered(self) -> None:
        """Deletes what was gathered for the tokenizer."""
        self.folder.remove_file(self.folder.gathered)
        self.folder.remove_file(self.folder.sample)

    @contextmanager
    def opened(self, kind: np.dtype[Any]) -> Iterator[None]:
        """Opens the files for appending, after truncating them to the counted size.

        Raises:
            UsageError: a file is shorter than counted, or is a symbolic link.
        """
        written, folder = self.counts, self.folder
        sizes = {
            folder.tokens: written.tokens * kind.itemsize,
            folder.lengths: written.documents * 8,
            folder.skipped: written.skipped_bytes,
        }
        with self.appending(sizes):
            self.files[folder.tokens].seek(0)
            self.tokens_digest = hashlib.file_digest(self.files[folder.tokens], "sha256")
            yield

    def add(self, chunk: Chunk, encoded: Encoded, *, eod: int | None, names: Sequence[str]) -> None:
        """Appends an encoded chunk.

        Args:
            names: names of the inputs, for the list of bad records.
        """
        before, folder = self.counts, self.folder
        tokens, lengths = encoded.tokens, encoded.lengths
        open_tokens, empty = before.open_tokens, encoded.empty
        if chunk.is_piece:
            tokens, lengths, open_tokens = _after_piece(
                tokens, before.open_tokens, eod, ends_text=chunk.slices[0].ends_text
            )
            empty = int(chunk.slices[0].ends_text and not len(lengths))
        rows = [
            {"file": names[bad.input], "line": bad.line, "reason": bad.reason}
            for bad in encoded.bad
        ]
        listed = "".join(json.dumps(row) + "\n" for row in rows).encode()
        for path, content in (
            (folder.tokens, tokens.data),
            (folder.lengths, lengths.data),
            (folder.skipped, listed),
        ):
            self.files[path].write(content)
        self.tokens_digest.update(tokens.data)
        largest = [int(tokens.max()), before.largest_token or 0] if len(tokens) else []
        written = WrittenCounts(
            position=chunk.end,
            consumed_bytes=chunk.consumed_bytes,
            tokens=before.tokens + len(tokens),
            documents=before.documents + len(lengths),
            open_tokens=open_tokens,
            empty=before.empty + empty,
            largest_token=max(largest, default=before.largest_token),
            text_bytes=before.text_bytes + encoded.text_bytes,
            skipped=before.skipped + len(rows),
            skipped_bytes=before.skipped_bytes + len(listed),
        )
        self.advance(written)

    def blocks_of_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yields the documents' lengths in blocks.

        Raises:
            UsageError: the lengths do not add up to the tokens.
        """
        total = 0
        with os.fdopen(self.folder.open(self.folder.lengths, os.O_RDONLY), "rb") as file:
            while len(block := np.fromfile(file, dtype=np.int64, count=LENGTHS_AT_ONCE)):
                if block.min() < 1 or block.max() > self.counts.tokens:
                    raise cannot_resume(
                        self.folder,
                        f"{self.folder.lengths} is damaged: it holds an impossible length",
                    )
                total += int(block.sum())
                yield block
        if total != self.counts.tokens:
            raise cannot_resume(
                self.folder,
                f"{self.folder.lengths} is damaged: documents have {total:,} of"
                f" {self.counts.tokens:,} tokens",
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns an OSError into a RampcliError that names the file and says how to resume."""
    try:
        yield
    except BrokenPipeError:  # standard output, to which progress is printed
        raise
    except OSError as error:
        where = error.filename or folder
        raise RampcliError(
            f"cannot write {where}: {error.strerror or error}",
            remedy="free space and write permission; the same command then resumes",
        ) from error


def move_into_place(path: Path, name: Path) -> None:
    """Moves a finished file to its final name, unless an earlier start has done so.

    Raises:
        UsageError: another file has the name, or neither file exists.
    """
    try:
        descriptor = GuardedFolder(path.parent).open(path, os.O_RDONLY)
    except FileNotFoundError:
        if os.path.lexists(name):
            return
        raise UsageError(
            f"{path} is missing", remedy=f"delete {path.parent} and start again"
        ) from None
    os.fsync(descriptor)
    os.close(descriptor)
    if os.path.lexists(name):
        raise UsageError(
            f"{name} already exists, and this build did not write it",
            remedy="move it away; the same command then resumes",
        )
    GuardedFolder(name.parent).rename(path, name)


def _after_piece(
    tokens: NDArray[Any], open_tokens: int, eod: int | None, *, ends_text: bool
) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """Returns the tokens and documents that a piece of a text adds.

    Returns:
        The tokens, the length of the document if it ends here, and the length of the document if
        it continues, else 0.
    """
    total = open_tokens + len(tokens)
    if not ends_text or not total:
        return tokens, np.empty(0, dtype=np.int64), total
    if eod is not None:
        tokens = np.append(tokens, np.array(eod, dtype=tokens.dtype))
    return tokens, np.array([open_tokens + len(tokens)], dtype=np.int64), 0


def cannot_resume(folder: BuildFolder, message: str) -> UsageError:
    """Returns the error of a build whose files do not fit each other."""
    return UsageError(
        message,
        remedy="restore the file; the same command then resumes; or delete"
        f" {folder.path} to start again",
    )


def _as_skipping(found: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of an earlier start, with "skip" if only that is new.

    A build that goes on has met no bad record, so "skip" changes nothing that was done so far.
    """
    is_new = (found["on_bad_record"], settings["on_bad_record"]) == ("stop", "skip")
    return {**found, "on_bad_record": "skip"} if is_new else found


def _changes(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Describes how inputs and options differ from those that the build was started with."""
    changed = []
    before, now = ({one["name"]: one for one in each["inputs"]} for each in (found, settings))
    for name in before | now:
        if name not in before:
            changed.append(f"{name} was added")
        elif name not in now:
            changed.append(f"{name} is no longer an input")
        elif before[name] != now[name]:
            changed.append(f"{name} has changed")
    if not changed and [*before] != [*now]:
        changed.append("the order of the inputs has changed")
    for key in BUILD_SETTINGS:
        if found[key] != settings[key]:
            option = OPTION_TITLES.get(key, f"--{key.replace('_', '-')}")
            was, became = (each[key] or "not given" for each in (found, settings))
            changed.append(f"{option} was {was} and is now {became}")
    more = len(changed) - CHANGES_SHOWN
    return changed[:CHANGES_SHOWN] + ([f"and {more} more have changed"] if more > 0 else [])
