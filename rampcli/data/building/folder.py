"""PREFIX.building, the folder of an unfinished build: its files and its lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from rampcli.errors import UsageError
from rampcli.files.guarded_folder import GuardedFolder, PathInside


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
