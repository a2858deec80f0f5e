"""Folders in which rampcli writes and deletes, and follows no symbolic link.

A marker file shows that rampcli made a folder. Links above the folder are followed, because a user
may keep `runs` on another disk. Links inside it are refused: otherwise anyone who can create a link
there could choose which of the user's files is overwritten.
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
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from rampcli.errors import UsageError

MARKER = ".rampcli"
MARKER_FORMAT = 1
MARKER_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class PathInside:
    """A path in a `GuardedFolder`, by its name there, as an attribute of the folder's class."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: "GuardedFolder", _kind: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True, slots=True)
class GuardedFolder:
    """A folder in which no link is followed. Methods take paths in it, or in folders below it."""

    path: Path

    KIND: ClassVar[str] = "folder"

    marker = PathInside(MARKER)
    """The file that says that rampcli made the folder, and of which kind it is."""

    def is_claimed(self) -> bool:
        """Returns True if the folder has the marker of this kind of folder."""
        with suppress(OSError, ValueError, RecursionError):
            content = read_content(self.marker, most_bytes=MARKER_BYTES, follows_links=False)
            return bool(json.loads(content) == {"kind": self.KIND, "format": MARKER_FORMAT})
        return False

    def claim(self) -> None:
        """Creates the folder if needed, and marks it unless it is marked already.

        Raises:
            UsageError: the path is not a folder, or a folder that is not empty and has no marker.
        """
        if self.is_claimed():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = sorted(os.listdir(self.path))
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"{self.path} is not a folder", remedy="another path") from error
        # Another process may be writing the marker now: its temporary file does not count.
        foreign = next((name for name in names if not name.startswith(f".{MARKER}.")), None)
        if foreign is None:
            self.mark()
        elif not self.is_claimed():  # another process may have claimed it by now
            raise UsageError(
                f"{self.path} is not empty, and rampcli did not make it: it holds {foreign}",
                remedy="another path, or an empty folder",
            )

    def mark(self) -> None:
        """Writes the marker."""
        self.replace(self.marker, json.dumps({"kind": self.KIND, "format": MARKER_FORMAT}) + "\n")

    @contextmanager
    def _parent(self, path: Path) -> Iterator[int]:
        """Opens the folder that holds `path` and yields its descriptor."""
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
        """Opens a regular file, or creates it if `flags` say so, and returns its descriptor.

        Raises:
            UsageError: the file or a folder on the way to it is a symbolic link, or it is not a
                regular file.
            OSError: as `os.open`.
        """
        with self._parent(path) as parent, _refusing_links(path):
            # Without O_NONBLOCK, opening a FIFO would wait for a process at its other end.
            descriptor = os.open(
                path.name,
                flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                0o666,
                dir_fd=parent,
            )
            return _only_regular(descriptor, path)

    def open_to_append(self, path: Path) -> BinaryIO:
        """Opens or creates a file for reading and appending. Raises what `open` raises."""
        return os.fdopen(self.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab+")

    def replace(self, path: Path, content: str | bytes | BinaryIO) -> None:
        """Writes a temporary file, flushes it to disk, and renames it to `path`.

        The content may be a file, which is copied piece by piece.

        Raises:
            UsageError: a folder on the way is a symbolic link.
            OSError: writing failed, for example because the disk is full. `path` is unchanged.
        """
        aside = f".{path.name}.{secrets.token_hex(8)}.tmp"
        with _naming(path), self._parent(path) as parent:
            descriptor = os.open(
                aside,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o666,
                dir_fd=parent,
            )
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if isinstance(content, str | bytes):
                        file.write(content.encode() if isinstance(content, str) else content)
                    else:
                        shutil.copyfileobj(content, file)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(aside, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                os.unlink(aside, dir_fd=parent)
                raise

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Replaces a JSON file. Raises what `replace` raises."""
        self.replace(path, json.dumps(content, indent=1) + "\n")

    def make_folder(self, path: Path) -> None:
        """Creates a folder and its parents inside this one. Existing folders stay as they are.

        Raises:
            UsageError: one of them is a symbolic link or not a folder.
        """
        at = self.path
        for name in path.relative_to(self.path).parts:
            at /= name
            with self._parent(at) as parent, suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
        with self._parent(path / MARKER):  # refuses a link at `path` itself
            pass

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file or folder and waits until the new name is on disk."""
        with self._parent(old) as source, self._parent(new) as target:
            os.rename(old.name, new.name, src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)

    def flush(self, folder: Path) -> None:
        """Waits until the names in a folder are on disk."""
        with self._parent(folder / MARKER) as descriptor:
            os.fsync(descriptor)

    def remove_file(self, path: Path) -> None:
        """Deletes a file if it exists. A symbolic link is deleted, not its target."""
        with suppress(FileNotFoundError), self._parent(path) as parent:
            os.unlink(path.name, dir_fd=parent)

    def remove_tree(self, path: Path) -> None:
        """Deletes a file, or a folder with its content, if it exists.

        A symbolic link is deleted, not its target.
        """
        with suppress(FileNotFoundError), self._parent(path) as parent:
            if stat.S_ISDIR(os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(path.name, dir_fd=parent)
            else:
                os.unlink(path.name, dir_fd=parent)


def private_folder(purpose: str) -> Path:
    """Returns a temporary folder that only this user can write to; creates it if needed.

    Raises:
        UsageError: another user made the folder or can write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"rampcli-{purpose}-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(
            f"{folder} is not a folder that only you can write to",
            remedy="remove it, or set TMPDIR to a folder of your own",
        )
    return folder


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file that the user named.

    Raises:
        UsageError: it is a symbolic link.
        OSError: as `GuardedFolder.replace`.
    """
    if path.is_symlink():
        raise UsageError(
            f"{path} is a symbolic link, and rampcli does not write through links",
            remedy=f"{path.resolve()}, to which it leads",
        )
    GuardedFolder(path.parent).replace(path, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file that the user named. Raises what `replace_file` raises."""
    replace_file(path, json.dumps(content, indent=1) + "\n")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Makes an OSError name the file that was to be written, not its temporary file or nothing."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def _refusing_links(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and path.is_symlink()):
            raise link_refused(path) from error
        if error.errno == errno.ENOTDIR:
            raise UsageError(f"{path} is not a folder", remedy="remove it") from error
        # ENXIO: a FIFO was opened for writing, and no process reads from it.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise _not_regular(path) from error
        error.filename = str(path)
        raise


def link_refused(path: Path) -> UsageError:
    """Returns the error for a symbolic link inside a folder that rampcli owns."""
    return UsageError(
        f"{path} is a symbolic link, and rampcli follows no links in its own folders",
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


def open_to_read(path: Path, *, follows_links: bool = True) -> BufferedReader:
    """Opens a regular file for reading. Never waits for the other end of a FIFO.

    Raises:
        OSError: the file does not exist, cannot be read, or is not a regular file.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows_links else os.O_NOFOLLOW)
    )
    try:
        return os.fdopen(_only_regular(descriptor, path), "rb")
    except UsageError as error:
        raise OSError(errno.EINVAL, "not a regular file", str(path)) from error


def read_content(path: Path, *, most_bytes: int, follows_links: bool = True) -> bytes:
    """Returns the content of a regular file.

    Raises:
        OSError: as `open_to_read`, or the file is larger than `most_bytes`.
    """
    with open_to_read(path, follows_links=follows_links) as file:
        size = os.fstat(file.fileno()).st_size  # read() allocates all the bytes it is asked for
        content = file.read(min(size, most_bytes) + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
    return content
