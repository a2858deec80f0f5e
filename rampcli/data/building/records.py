"""Finds the inputs of a build and cuts them into chunks of records.

Reading is sequential and cheap: files are cut at the ends of lines and not decoded. `parsing` turns
chunks into texts.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any

from rampcli.data.building.streams import (
    PIECE_BYTES,
    find_cut,
    open_unpacked,
    read_rows,
    skip,
    skip_line,
)
from rampcli.errors import UsageError, reading
from rampcli.guarded_folder import open_to_read

LONGEST_LINE_BYTES = 128 << 20
BOM = b"\xef\xbb\xbf"


class Kind(StrEnum):
    """Contents of a file: one text, texts in lines of JSON, or texts in a column of Parquet."""

    text = "text"
    json = "json"
    parquet = "parquet"


KINDS = {
    ".txt": Kind.text,
    ".md": Kind.text,
    ".jsonl": Kind.json,
    ".json": Kind.json,
    ".ndjson": Kind.json,
    ".parquet": Kind.parquet,
}
COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Input:
    """A file to read, with its size and time when it was found."""

    path: Path
    kind: Kind
    compression: str | None
    bytes: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The path as the user typed it, or below a folder that the user typed."""
        return str(self.path)

    def identity(self) -> dict[str, Any]:
        """Returns the facts that change with the file's contents."""
        return {"name": self.name, "bytes": self.bytes, "mtime_ns": self.mtime_ns}

    def has_changed(self) -> bool:
        """Returns True if the file has been replaced, written to or deleted."""
        try:
            found = self.path.stat()
        except OSError:
            return True
        return (found.st_size, found.st_mtime_ns) != (self.bytes, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two slices, at which reading can continue.

    Attributes:
        offset: bytes of it before the position, after decompression; rows in Parquet.
        line: lines before the position; rows in Parquet.
    """

    input: int = 0
    offset: int = 0
    line: int = 0

    def after(self, content: bytes) -> "Cursor":
        """Returns the position behind whole lines or a piece of a text."""
        return Cursor(self.input, self.offset + len(content), self.line + content.count(b"\n"))


@dataclass(frozen=True, slots=True)
class Slice:
    """Whole records of an input, or a piece of a text.

    Attributes:
        first_line: first line or row, from 1.
        content: bytes of a text or of lines of JSON, or the texts of rows, None for a null.
        opens: True if it is the start of a text, or whole records.
        closes: True if it is the end of a text, or whole records.
        refused: why `content` was left out, or None.
    """

    input: int
    kind: Kind
    first_line: int
    content: bytes | list[bytes | None]
    opens: bool = True
    closes: bool = True
    refused: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the content."""
        return (
            len(self.content)
            if isinstance(self.content, bytes)
            else sum(len(row or b"") for row in self.content)
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A unit of encoding: slices of whole records, or one piece of a longer text.

    Attributes:
        end: position at which reading continues.
        consumed_bytes: size of the inputs before that position, as stored.
    """

    slices: tuple[Slice, ...]
    end: Cursor
    consumed_bytes: int

    @property
    def is_piece(self) -> bool:
        """True if it is a piece of a longer text."""
        return not (self.slices[0].opens and self.slices[0].closes)


def find_inputs(paths: Sequence[Path], *, leave_out: Iterable[Path] = ()) -> list[Input]:
    """Returns the named files, and all files with a known suffix below the named folders.

    Args:
        paths: files and folders. The files below a folder are sorted by path.
        leave_out: files and folders that are never taken from a folder.

    Raises:
        UsageError: a file does not exist, cannot be read or is named twice, or a folder contains
            no files to read.
    """
    own = {_real(path) for path in leave_out}
    found: dict[Path, Input] = {}
    for given in paths:
        files = _files_in(given, own) if os.path.isdir(given) else [given]
        for path in files:
            if (real := _real(path)) in found:
                raise UsageError(
                    f"{path} is given twice",
                    remedy="each file once; a folder includes all files below it",
                )
            found[real] = _input(path)
    return list(found.values())


def _real(path: Path) -> Path:
    """Resolves links; unlike `Path.resolve`, it accepts links that lead to themselves."""
    return Path(os.path.realpath(path))


def _files_in(folder: Path, own: set[Path]) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    with reading(folder, remedy="a folder that is readable"):
        found = os.walk(folder, onerror=refuse)
        paths = [Path(root, name) for root, _, names in found for name in names]
    known = [
        path
        for path in paths
        if _kind_of(path)[0] is not None and not own & {_real(path), *_real(path).parents}
    ]
    if not known:
        endings = ", ".join(KINDS)
        raise UsageError(
            f"{folder} contains no files to read",
            remedy=f"files that end in {endings}, also with .gz or .zst; or name the file",
        )
    return sorted(known, key=lambda path: path.relative_to(folder).parts)


def _kind_of(path: Path) -> tuple[Kind | None, str | None]:
    compression = path.suffix if path.suffix in COMPRESSIONS else None
    kind = KINDS.get((path.with_suffix("") if compression else path).suffix)
    return (None, None) if kind is Kind.parquet and compression else (kind, compression)


def _input(path: Path) -> Input:
    with reading(path, remedy="a file or folder that exists and is readable"):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(
                f"{path} is not a regular file; a build that resumes has to read it again",
                remedy="write it to a file first",
            )
        open_to_read(path).close()
    kind, compression = _kind_of(path)
    return Input(path, kind or Kind.text, compression, found.st_size, found.st_mtime_ns)


@dataclass(slots=True)
class Reader:
    """Reads inputs in order, chunk by chunk.

    Attributes:
        text_key: column of the text in Parquet.
    """

    inputs: Sequence[Input]
    text_key: str
    chunk_bytes: int = PIECE_BYTES
    _before: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._before = [0, *accumulate(one.bytes for one in self.inputs)]

    @property
    def bytes(self) -> int:
        """Size of all files, as stored."""
        return self._before[-1]

    def chunks(self, start: Cursor | None = None) -> Iterator[Chunk]:
        """Yields all chunks from a position on.

        Raises:
            UsageError: a file cannot be read, or is damaged.
        """
        gathered: list[Slice] = []
        gathered_bytes, end, consumed = 0, start or Cursor(), 0
        for piece, after, raw in self._slices(end):
            chunk = Chunk((piece,), after, raw)
            if gathered and (chunk.is_piece or gathered_bytes + piece.bytes > self.chunk_bytes):
                yield Chunk(tuple(gathered), end, consumed)
                gathered, gathered_bytes = [], 0
            end, consumed = after, raw
            if chunk.is_piece:
                yield chunk
            else:
                gathered.append(piece)
                gathered_bytes += piece.bytes
        if gathered:
            yield Chunk(tuple(gathered), end, consumed)

    def _slices(self, start: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        """Yields slices, the position after each, and the size of the inputs before it."""
        for number in range(start.input, len(self.inputs)):
            source = self.inputs[number]
            place = start if number == start.input else Cursor(number)
            for piece, after, consumed in (
                self._rows(source, place)
                if source.kind is Kind.parquet
                else self._bytes(source, place)
            ):
                yield piece, after, self._before[number] + consumed

    def _bytes(self, source: Input, place: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        read = _pieces_of_text if source.kind is Kind.text else _lines
        with open_unpacked(source.path, source.compression) as (content, stored):
            skip(content, place.offset)
            for piece, after in read(content, place, self.chunk_bytes):
                yield piece, after, stored.tell()

    def _rows(self, source: Input, place: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        for texts, count in read_rows(source.path, self.text_key, place.offset, self.chunk_bytes):
            row = place.offset + len(texts)
            piece = Slice(place.input, Kind.parquet, place.offset + 1, texts)
            place = Cursor(place.input, row, row)
            yield piece, place, source.bytes * min(row, count) // max(1, count)


def _pieces_of_text(stream: Any, place: Cursor, size: int) -> Iterator[tuple[Slice, Cursor]]:
    """Yields a text, whole or in pieces. The end of a piece depends only on its start."""
    data = b""
    while True:
        data += stream.read(size - len(data))
        opens, closes = place.offset == 0, len(data) < size
        cut = len(data) if closes else find_cut(data)
        content, data = data[:cut], data[cut:]
        end = place.after(content)
        text = content.removeprefix(BOM) if opens else content
        yield (
            Slice(place.input, Kind.text, place.line + 1, text, opens, closes),
            Cursor(place.input + 1) if closes else end,
        )
        if closes:
            return
        place = end


def _lines(stream: Any, place: Cursor, size: int) -> Iterator[tuple[Slice, Cursor]]:
    """Yields whole lines; a line that is too long for memory becomes a refused slice."""
    while data := stream.read(size):
        rest = b"" if data.endswith(b"\n") else stream.readline(LONGEST_LINE_BYTES)
        too_long = len(rest) == LONGEST_LINE_BYTES and not rest.endswith(b"\n")
        content = data[: data.rfind(b"\n") + 1] if too_long else data + rest
        if content:
            lines, end = (
                content if place.offset else content.removeprefix(BOM),
                place.after(content),
            )
            yield Slice(place.input, Kind.json, place.line + 1, lines), end
            place = end
        if too_long:
            left_out = len(data) + len(rest) - len(content) + skip_line(stream)
            end = Cursor(place.input, place.offset + left_out, place.line + 1)
            reason = f"line longer than {LONGEST_LINE_BYTES >> 20} MB"
            yield Slice(place.input, Kind.json, place.line + 1, b"", refused=reason), end
            place = end
