"""Folders that rampcli writes, truncates and deletes in: marked as its own, and never left through a symbolic link.

Links above such a folder are followed, because a user may keep `runs` on another disk. Links inside it are refused: whoever can put a
link there could otherwise choose which of the user's files is overwritten.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from rampcli.errors import UsageError

MARKER = ".rampcli"
MARKER_FORMAT = 1
MARKER_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """A folder of ours. Paths that its methods take lie in it, or in folders below it."""

    path: Path

    KIND: ClassVar[str] = "folder"

    @property
    def marker(self) -> Path:
        """The file that says that rampcli made the folder, and what for."""
        return self.path / MARKER

    def is_claimed(self) -> bool:
        """Whether the folder carries the marker of this kind of folder."""
        with suppress(OSError, ValueError, RecursionError):
            content = read_file(self.marker, most_bytes=MARKER_BYTES, follows_links=False)
            return bool(json.loads(content) == {"kind": self.KIND, "format": MARKER_FORMAT})
        return False

    def claim(self) -> None:
        """Make the folder and mark it. Does nothing if it is marked already.

        Raises:
            UsageError: the folder holds something and has no marker, so it is not ours; or it is not a folder.
        """
        if self.is_claimed():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            foreign = next(
                (
                    name
                    for name in sorted(os.listdir(self.path))
                    if not name.startswith(f".{MARKER}.")
                ),
                None,
            )
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{self.path} is not a folder", remedy="another path") from error
        if foreign is None:
            self.mark()
        elif not self.is_claimed():  # by another process, since
            raise UsageError(
                f"{self.path} is not empty, and rampcli did not make it: it holds {foreign}",
                remedy="another path, or an empty folder",
            )

    def mark(self) -> None:
        """Write the marker."""
        self.replace(self.marker, json.dumps({"kind": self.KIND, "format": MARKER_FORMAT}) + "\n")

    @contextmanager
    def _parent(self, path: Path) -> Iterator[int]:
        """Open the folder that holds `path`; gives its descriptor."""
        descriptor, at = os.open(self.path, _FOLDER), self.path
        try:
            for name in path.parent.relative_to(self.path).parts:
                at /= name
                with _refusing_links(at):
                    inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, path: Path, flags: int) -> int:
        """Open a regular file, which `flags` may create; returns its descriptor.

        Raises:
            UsageError: the file, or a folder on the way to it, is a symbolic link, or it is not a regular file.
            OSError: as `os.open`.
        """
        with self._parent(path) as parent, _refusing_links(path):
            # Without O_NONBLOCK, opening a FIFO waits for its other end.
            descriptor = os.open(
                path.name,
                flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                0o666,
                dir_fd=parent,
            )
            return _only_regular(descriptor, path)

    def open_to_append(self, path: Path) -> BinaryIO:
        """Open a file for reading and appending; it is made if it is not there. Raises as `open`."""
        return os.fdopen(self.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab+")

    def replace(self, path: Path, content: str | bytes) -> None:
        """Write a file aside, flush it to disk, and give it the name `path`.

        Raises:
            UsageError: a folder on the way is a symbolic link.
            OSError: the disk is full, say; the file is as it was.
        """
        aside = f".{path.name}.{secrets.token_hex(8)}.tmp"
        with self._parent(path) as parent:
            descriptor = os.open(
                aside,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o666,
                dir_fd=parent,
            )
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content.encode() if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(aside, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                os.unlink(aside, dir_fd=parent)
                raise

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Replace a JSON file. Raises as `replace`."""
        self.replace(path, json.dumps(content, indent=1) + "\n")

    def make_folder(self, path: Path) -> None:
        """Make a folder, and those above it inside this one. One that is there stays as it is.

        Raises:
            UsageError: one of them is a symbolic link, or not a folder.
        """
        at = self.path
        for name in path.relative_to(self.path).parts:
            at /= name
            with self._parent(at) as parent, suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        with self._parent(path / MARKER):  # refuses a link at `path` itself
            pass

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder another name, and wait until the names are on disk."""
        with self._parent(old) as source, self._parent(new) as target:
            os.rename(old.name, new.name, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)

    def flush(self, folder: Path) -> None:
        """Wait until the names in a folder are on disk."""
        with self._parent(folder / MARKER) as descriptor:
            os.fsync(descriptor)

    def remove_file(self, path: Path) -> None:
        """Delete a file if it is there; of a link, the link."""
        with suppress(FileNotFoundError), self._parent(path) as parent:
            os.unlink(path.name, dir_fd=parent)

    def remove_tree(self, path: Path) -> None:
        """Delete a file, or a folder and what it holds, if it is there. Of a link only the link is deleted."""
        with suppress(FileNotFoundError), self._parent(path) as parent:
            if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(path.name, dir_fd=parent)
            else:
                os.unlink(path.name, dir_fd=parent)


def private_folder(purpose: str) -> Path:
    """Returns a folder below the temporary folder that only this user can write to. It is made if it is not there.

    Raises:
        UsageError: somebody else has made it, or could write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"rampcli-{purpose}-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(
            f"{folder} is not a folder that only you can write to",
            remedy="TMPDIR=FOLDER, a folder of yours; or remove it",
        )
    return folder


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file that a user named. Raises as `OwnFolder.replace`."""
    OwnFolder(path.parent).replace(path, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file that a user named. Raises as `OwnFolder.replace`."""
    OwnFolder(path.parent).write_json(path, content)


@contextmanager
def _refusing_links(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and path.is_symlink()):
            raise link_refused(path) from error
        if error.errno == errno.ENOTDIR:
            raise UsageError(f"{path} is not a folder", remedy="remove it") from error
        if error.errno in (
            errno.ENXIO,
            errno.EISDIR,
        ):  # ENXIO: a FIFO that is opened for writing, and nobody reads
            raise _not_regular(path) from error
        error.filename = str(path)
        raise


def link_refused(path: Path) -> UsageError:
    """Returns the error for a symbolic link inside a folder of ours."""
    return UsageError(
        f"{path} is a symbolic link, and rampcli follows none in its own folders",
        remedy="remove it",
    )


def _not_regular(path: Path | str) -> UsageError:
    return UsageError(f"{path} is not a regular file", remedy="remove it")


def _only_regular(descriptor: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    os.set_blocking(descriptor, True)
    return descriptor


def open_to_read(path: Path, *, follows_links: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it is not there, cannot be read, or is not a regular file: a FIFO would wait for its other end.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW)
    )
    try:
        return os.fdopen(_only_regular(descriptor, path), "rb")
    except UsageError as error:
        raise OSError(errno.EINVAL, "not a regular file", str(path)) from error


def read_file(path: Path, *, most_bytes: int, follows_links: bool = True) -> bytes:
    """Returns what a regular file holds.

    Raises:
        OSError: as `open_to_read`, or it is larger than `most_bytes`.
    """
    with open_to_read(path, follows_links=follows_links) as file:
        size = os.fstat(file.fileno()).st_size  # reading allocates at once what it is asked for
        content = file.read(min(size, most_bytes) + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
    return content
