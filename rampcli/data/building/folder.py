"""PREFIX.building, the folder of an unfinished build: its files, their formats and its lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rampcli.data.manifest import MOST_BYTES
from rampcli.errors import DamagedFileError, UsageError
from rampcli.own_folder import OwnFolder
from rampcli.records import ANY, COUNT, read_json

PROGRESS = {
    "position": {"input": COUNT, "offset": COUNT, "line": COUNT},
    **dict.fromkeys(
        (
            "consumed_bytes",
            "tokens",
            "documents",
            "open_tokens",
            "empty",
            "text_bytes",
            "skipped",
            "skipped_bytes",
        ),
        COUNT,
    ),
    "largest_token": (COUNT, None),
    "is_complete": bool,
}
SETTINGS = {
    "inputs": [{"name": str, "bytes": COUNT, "mtime_ns": ANY}],
    "tokenizer": str,
    "tokenizer_sha256": (str, None),
    "eod_option": (str, None),
    "text_key": str,
    "on_bad_record": str,
}
"""Shapes of progress.json and settings.json, for `rampcli.records.check_shape`."""


@dataclass(frozen=True, slots=True)
class BuildFolder(OwnFolder):
    """Folder of an unfinished build.

    It lies beside the files that the build writes, and is removed once they are in place.
    """

    KIND: ClassVar[str] = "build"

    @property
    def lock(self) -> Path:
        """The lock; the building process holds it."""
        return self.path / "lock"

    @property
    def tokens(self) -> Path:
        """The tokens, concatenated."""
        return self.path / "tokens.bin"

    @property
    def lengths(self) -> Path:
        """The documents' lengths in tokens, int64."""
        return self.path / "lengths.bin"

    @property
    def skipped(self) -> Path:
        """The list of bad records."""
        return self.path / "skipped.jsonl"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer; replaced atomically."""
        return self.path / "tokenizer.json"

    @property
    def progress(self) -> Path:
        """The valid size of the other files, and the position at which reading resumes."""
        return self.path / "progress.json"

    @property
    def settings(self) -> Path:
        """The inputs and options of the build."""
        return self.path / "settings.json"

    @property
    def index(self) -> Path:
        """The index; written after encoding."""
        return self.path / "index.idx"

    @property
    def manifest(self) -> Path:
        """The manifest; written after encoding."""
        return self.path / "manifest.json"

    def claim(self) -> None:
        """Claims the folder as `OwnFolder.claim` does, and refuses a symbolic link in its place.

        The build removes the folder in the end, so it must not be a link.
        """
        OwnFolder(self.path.parent).make_folder(self.path)
        OwnFolder.claim(self)

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
                if not os.path.lexists(self.progress):
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

    def read_progress(self) -> dict[str, Any] | None:
        """Returns the contents of progress.json, or None if the file does not exist.

        Raises:
            DamagedFileError: the file cannot be read, or has another shape.
        """
        with suppress(FileNotFoundError):
            return dict(read_json(self.progress, PROGRESS, most_bytes=MOST_BYTES))
        return None

    def read_settings(self) -> dict[str, Any]:
        """Returns the contents of settings.json.

        Raises:
            DamagedFileError: the file is missing, cannot be read, or has another shape.
        """
        try:
            return dict(read_json(self.settings, SETTINGS, most_bytes=MOST_BYTES))
        except FileNotFoundError as error:
            raise DamagedFileError(f"{self.settings} is missing") from error

    def is_complete(self) -> bool:
        """Returns True if the build is complete; some of its files may already be in place."""
        with suppress(OSError, DamagedFileError):
            return self.is_claimed() and bool((self.read_progress() or {}).get("is_complete"))
        return False
