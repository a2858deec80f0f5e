"""PREFIX.building: the folder of a build that is not done. Its files, what they hold, and who may write to them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rampcli.errors import DamagedFileError, UsageError
from rampcli.own_folder import OwnFolder
from rampcli.records import ANY, COUNT, read_json

MOST_BYTES = 256 << 20
"""Of a JSON file of a build. It names every input, and there may be millions."""
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
"""Shapes of progress.json and settings.json, as `rampcli.records` has them."""


@dataclass(frozen=True, slots=True)
class BuildFolder(OwnFolder):
    """The folder of a build. It is made next to the files that the build will write, and removed when they have their names."""

    KIND: ClassVar[str] = "build"

    @property
    def lock(self) -> Path:
        """Held by the process that builds."""
        return self.path / "lock"

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
        """How much the other files hold, and where reading continues."""
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

    def claim(self) -> None:
        """As `OwnFolder.claim`. Refuses a symbolic link at the folder's own place, too: the folder will be removed."""
        OwnFolder(self.path.parent).make_folder(self.path)
        OwnFolder.claim(self)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other builds out of it. Removes it at the end if it holds no progress.

        Raises:
            UsageError: the folder is not ours, it or its lock is a symbolic link, or another build is at work.
        """
        self.claim()
        with os.fdopen(self.open(self.lock, os.O_RDWR | os.O_CREAT), "r+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                name = self.path.with_suffix("")
                raise UsageError(
                    f"another build of {name} is at work", remedy="wait for it, or another --output"
                ) from error
            self.mark()  # a build that has ended since may have taken the marker away
            try:
                yield
            finally:
                if not os.path.lexists(self.progress):
                    self._remove()

    def _remove(self) -> None:
        """Delete the folder; the lock and the marker last, so that no build begins in a folder that is half gone."""
        for name in os.listdir(self.path):
            if self.path / name not in (self.lock, self.marker):
                self.remove_tree(self.path / name)
        self.remove_file(self.lock)
        self.remove_file(self.marker)
        with suppress(OSError):
            self.path.rmdir()

    def remove_leftovers(self) -> None:
        """Delete the folder of a complete build that was killed before it could do so. Leaves a folder that is not ours, or in use."""
        if self.is_claimed():
            with suppress(OSError, UsageError), self.locked():
                self.remove_file(self.progress)

    def read_progress(self) -> dict[str, Any] | None:
        """Returns what progress.json says, or None if the file does not exist.

        Raises:
            DamagedFileError: it cannot be read, or has another shape.
        """
        with suppress(FileNotFoundError):
            return dict(read_json(self.progress, PROGRESS, most_bytes=MOST_BYTES))
        return None

    def read_settings(self) -> dict[str, Any]:
        """Returns what settings.json says.

        Raises:
            DamagedFileError: it is missing, cannot be read, or has another shape.
        """
        try:
            return dict(read_json(self.settings, SETTINGS, most_bytes=MOST_BYTES))
        except FileNotFoundError as error:
            raise DamagedFileError(f"{self.settings} is missing") from error

    def is_taking_names(self) -> bool:
        """Returns whether the build is complete, so that some of its files may have their names already."""
        with suppress(OSError, DamagedFileError):
            return self.is_claimed() and bool((self.read_progress() or {}).get("is_complete"))
        return False
