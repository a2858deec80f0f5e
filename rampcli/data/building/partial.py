"""PREFIX.building: what a build has written so far, and where it goes on from.

Only what progress.json counts is there. What was written after it is cut off when the build goes on, and encoded again.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.encoding import Encoded
from rampcli.data.building.folder import BuildFolder
from rampcli.data.building.records import Chunk, Position
from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.own_folder import OwnFolder

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
    """A build that is not done. Use it as `with folder.locked(): with partial.opened(kind): ...`."""

    folder: BuildFolder
    written: Written = field(default_factory=Written)
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _saved: Written | None = None

    @property
    def has_text(self) -> bool:
        """Whether anything of the inputs is behind."""
        return self.written.position != Position()

    def begin(self, settings: dict[str, Any]) -> bool:
        """Read how far the build is, or begin it.

        Returns:
            Whether an earlier build is continued.

        Raises:
            UsageError: it was begun with other inputs or options, or its files are damaged.
        """
        try:
            state = self.folder.read_progress()
            if state is None:
                return self._begin_anew(settings)
            found = self.folder.read_settings()
        except DamagedFileError as error:
            raise self._refused(error.message) from error
        self.written = Written(
            **{
                **{name: state[name] for name in asdict(Written())},
                "position": Position(**_place(state)),
            }
        )
        if self.written.position.input > len(found["inputs"]):
            raise self._refused(
                f"{self.folder.progress} is damaged: there is no input {self.written.position.input:,}"
            )
        # Up to now nothing was bad, or it would have stopped: with --on-bad-record skip it would stand at the same place.
        if (found["on_bad_record"], settings["on_bad_record"]) == ("stop", "skip"):
            found["on_bad_record"] = "skip"
        changed = _differences(found, settings)
        if changed and not self.has_text:
            return self._begin_anew(settings)
        if changed:
            raise self._refused(
                f"{'; '.join(changed)} since the build in {self.folder.path} was begun"
            )
        self.folder.write_json(self.folder.settings, settings)
        self._saved = self.written
        return True

    def _begin_anew(self, settings: dict[str, Any]) -> bool:
        self.folder.remove_file(self.folder.tokenizer)
        self.written = Written()
        self.folder.write_json(self.folder.settings, settings)
        return False

    def _refused(self, message: str) -> UsageError:
        return UsageError(
            message, remedy=f"as it was, to go on; or delete {self.folder.path} to begin anew"
        )

    @contextmanager
    def opened(self, kind: np.dtype[Any]) -> Iterator[None]:
        """Open the files to add to; cut off what is not counted.

        Raises:
            UsageError: they hold less than is counted, or one is a symbolic link.
        """
        written, folder = self.written, self.folder
        of_tokens, of_lengths = written.tokens * kind.itemsize, written.documents * 8
        sizes = {
            folder.tokens: of_tokens,
            folder.lengths: of_lengths,
            folder.skipped: written.skipped_bytes,
        }
        try:
            for path, size in sizes.items():
                file: BinaryIO = os.fdopen(folder.open(path, os.O_RDWR | os.O_CREAT), "r+b")
                self._files[path.name] = file
                if file.seek(0, os.SEEK_END) < size:
                    raise self._refused(f"{path} is shorter than {folder.progress.name} says")
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
        before, folder = self.written, self.folder
        tokens, lengths, open_tokens, empty = (
            encoded.tokens,
            encoded.lengths,
            before.open_tokens,
            encoded.empty,
        )
        if chunk.is_piece:
            tokens, lengths, open_tokens = _after_piece(
                tokens, before.open_tokens, eod, closes=chunk.slices[0].closes
            )
            empty = int(chunk.slices[0].closes and not len(lengths))
        rows = [
            {"file": names[bad.input], "line": bad.line, "reason": bad.reason}
            for bad in encoded.bad
        ]
        listed = "".join(json.dumps(row) + "\n" for row in rows).encode()
        for path, content in (
            (folder.tokens, tokens.tobytes()),
            (folder.lengths, lengths.tobytes()),
            (folder.skipped, listed),
        ):
            self._files[path.name].write(content)
        self.written = Written(
            position=chunk.end,
            consumed_bytes=chunk.consumed_bytes,
            tokens=before.tokens + len(tokens),
            documents=before.documents + len(lengths),
            open_tokens=open_tokens,
            empty=before.empty + empty,
            largest_token=max((int(tokens.max()), before.largest_token or 0))
            if len(tokens)
            else before.largest_token,
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
        self.folder.write_json(self.folder.progress, asdict(written))
        self.written = self._saved = written

    def blocks_of_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Documents' lengths, some at a time.

        Raises:
            UsageError: they are not those of the tokens.
        """
        total = 0
        with os.fdopen(self.folder.open(self.folder.lengths, os.O_RDONLY), "rb") as file:
            while len(block := np.fromfile(file, dtype=np.int64, count=LENGTHS_AT_ONCE)):
                if block.min() < 1 or block.max() > self.written.tokens:
                    raise self._refused(
                        f"{self.folder.lengths} is damaged: it holds a length that no document has"
                    )
                total += int(block.sum())
                yield block
        if total != self.written.tokens:
            raise self._refused(
                f"{self.folder.lengths} is damaged: documents have {total:,} of {self.written.tokens:,} tokens"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Let an error of writing say where, and that the build goes on from there.

    Raises:
        RampcliError: instead of an error of the operating system.
    """
    try:
        yield
    except BrokenPipeError:  # of standard output, which progress is printed to
        raise
    except OSError as error:
        where = error.filename or folder
        raise RampcliError(
            f"cannot write {where}: {error.strerror or error}",
            remedy="room and permission; the same command goes on",
        ) from error


def take_name(path: Path, name: Path) -> None:
    """Give a file of the folder its name, unless it has it already.

    Raises:
        UsageError: another file has the name, or there is neither.
    """
    try:
        descriptor = OwnFolder(path.parent).open(path, os.O_RDONLY)
    except FileNotFoundError:
        if os.path.lexists(name):
            return
        raise UsageError(
            f"{path} is missing", remedy=f"delete {path.parent} and begin anew"
        ) from None
    os.fsync(descriptor)
    os.close(descriptor)
    if os.path.lexists(name):
        raise UsageError(
            f"{name} is there already, and this build did not write it",
            remedy="move it away; the same command goes on then",
        )
    OwnFolder(name.parent).rename(path, name)


def _after_piece(
    tokens: NDArray[Any], open_tokens: int, eod: int | None, *, closes: bool
) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """What a piece of a text adds: tokens, the lengths of documents that end, and how long the one is that goes on."""
    total = open_tokens + len(tokens)
    if not closes or not total:
        return tokens, np.empty(0, dtype=np.int64), total
    if eod is not None:
        tokens = np.append(tokens, np.array(eod, dtype=tokens.dtype))
    return tokens, np.array([open_tokens + len(tokens)], dtype=np.int64), 0


def _place(state: dict[str, Any]) -> dict[str, int]:
    """Returns the fields of a `Position`; progress.json may hold more."""
    return {name: state["position"][name] for name in asdict(Position())}


def _differences(found: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    changed = []
    before, now = ({one["name"]: one for one in of["inputs"]} for of in (found, settings))
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            changed.append(
                f"{name} {'was added' if name not in before else 'is no input any more' if name not in now else 'has changed'}"
            )
    if not changed and [*before] != [*now]:
        changed.append("the order of the inputs has changed")
    for key, value in settings.items():
        if key != "inputs" and found.get(key) != value:
            changed.append(f"{key} was {found.get(key)} and is {value}")
    return changed[:5] + ([f"and {len(changed) - 5} more have changed"] if len(changed) > 5 else [])
