"""Finds the inputs of a build and cuts them into chunks of records.

Reading is sequential and cheap: files are cut at the ends of lines and not decoded. `parsing` turns
chunks into texts.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from rampcli.data.building.streams import (
    LONGEST_TEXT_BYTES,
    TEXT_PIECE_BYTES,
    cut_text,
    open_unpacked,
    read_parquet,
    skip_line,
)
from rampcli.data.texts import UTF_8_MARK
from rampcli.errors import UsageError, reading
from rampcli.files.guarded_folder import open_to_read

Kind = Literal["text", "json", "parquet"]
"""Contents of a file: one text, texts in lines of JSON, or texts in a column of Parquet."""
KIND_OF_ENDING: dict[str, Kind] = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
COMPRESSIONS = (".gz", ".zst")
MOST_ENDINGS = 5


@dataclass(frozen=True, slots=True)
class Input:
    """An input file, with its size and modification time at the start of the build."""

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
            return _input(self.path) != self
        except UsageError:
            return True


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two slices, at which reading can continue.

    Attributes:
        offset: decompressed bytes of input `input` before the position; rows in Parquet.
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
        content: bytes of a text or of lines of JSON, or the texts of rows. A string is why a
            row has no text.
        starts_text: True for the first piece of a text, and for whole records.
        ends_text: True for the last piece of a text, and for whole records.
        refused: why `content` was left out, or None.
    """

    input: int
    kind: Kind
    first_line: int
    content: bytes | list[bytes | str]
    starts_text: bool = True
    ends_text: bool = True
    refused: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the content."""
        return (
            len(self.content)
            if isinstance(self.content, bytes)
            else sum(len(row) for row in self.content)
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
        return not (self.slices[0].starts_text and self.slices[0].ends_text)


def find_inputs(
    paths: Sequence[Path], *, leave_out: Iterable[Path] = ()
) -> tuple[list[Input], Counter[str]]:
    """Finds the named files, and all files with a known suffix below the named folders.

    Args:
        paths: files and folders. The files below a folder are sorted by path.
        leave_out: files and folders that are never taken from a folder.

    Returns:
        The inputs, and how many files below folders are not read, by ending. Hidden files and those
        of `leave_out` do not count.

    Raises:
        UsageError: a file does not exist, cannot be read or is named twice, or a folder contains
            no files to read.
    """
    left_out, others = {_real(path) for path in leave_out}, Counter[str]()
    found: dict[Path, Input] = {}
    for given in paths:
        files = _files_in(given, left_out, others) if os.path.isdir(given) else [given]
        for path in files:
            if (real := _real(path)) in found:
                raise UsageError(
                    f"{path} is given twice",
                    remedy="each file once; a folder includes all files below it",
                )
            found[real] = _input(path)
    return list(found.values()), others


def count_endings(others: Counter[str]) -> str:
    """Returns how many files have each of the most frequent endings: `1 .html, 1 .rst`."""
    named = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(MOST_ENDINGS))
    return named + (", ..." if len(others) > MOST_ENDINGS else "")


def _real(path: Path) -> Path:
    """Resolves links; unlike `Path.resolve`, it accepts links that lead to themselves."""
    return Path(os.path.realpath(path))


def _files_in(folder: Path, left_out: set[Path], others: Counter[str]) -> list[Path]:
    """Returns the files to read below a folder, and counts the endings of the others."""

    def refuse(error: OSError) -> None:
        raise error

    known = []
    with reading(folder, remedy="a folder that is readable"):
        for root, _, names in os.walk(folder, onerror=refuse):
            for path in (Path(root, name) for name in names):
                if left_out & {_real(path), *_real(path).parents}:
                    continue
                if _kind_of(path)[0] is not None:
                    known.append(path)
                elif not path.name.startswith("."):
                    others[path.suffix or path.name] += 1
    if not known:
        endings, found = (
            ", ".join(KIND_OF_ENDING),
            f" (it has {count_endings(others)})" if others else "",
        )
        raise UsageError(
            f"{folder} contains no files to read{found}",
            remedy=f"files that end in {endings}, also with .gz or .zst; or name the file",
        )
    return sorted(known, key=lambda path: path.relative_to(folder).parts)


def _kind_of(path: Path) -> tuple[Kind | None, str | None]:
    compression = path.suffix if path.suffix in COMPRESSIONS else None
    kind = KIND_OF_ENDING.get((path.with_suffix("") if compression else path).suffix)
    return (None, None) if kind == "parquet" and compression else (kind, compression)


def _input(path: Path) -> Input:
    remedy = "a file or folder that exists and is readable"
    with reading(path, remedy=remedy), open_to_read(path) as file:
        found = os.fstat(file.fileno())
    kind, compression = _kind_of(path)
    return Input(path, kind or "text", compression, found.st_size, found.st_mtime_ns)


@dataclass(slots=True)
class Reader:
    """Reads inputs in order, chunk by chunk.

    Attributes:
        text_key: column of the text in Parquet.
    """

    inputs: Sequence[Input]
    text_key: str
    chunk_bytes: int = TEXT_PIECE_BYTES
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
        slices, size = list[Slice](), 0
        end = (start or Cursor(), 0)
        for piece, after, consumed_bytes in self._slices(start or Cursor()):
            is_whole = piece.starts_text and piece.ends_text
            if slices and not (is_whole and size + piece.bytes <= self.chunk_bytes):
                yield Chunk(tuple(slices), *end)
                slices, size = [], 0
            slices.append(piece)
            size += piece.bytes
            end = (after, consumed_bytes)
            if not is_whole:
                yield Chunk(tuple(slices), *end)
                slices, size = [], 0
        if slices:
            yield Chunk(tuple(slices), *end)

    def _slices(self, start: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        """Yields slices, each with the position and the size of the inputs behind it."""
        for number in range(start.input, len(self.inputs)):
            source = self.inputs[number]
            place = start if number == start.input else Cursor(number)
            read = self._rows if source.kind == "parquet" else self._bytes
            for piece, after, consumed in read(source, place):
                yield piece, after, self._before[number] + consumed

    def _bytes(self, source: Input, place: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        read = _pieces_of_text if source.kind == "text" else _lines
        with open_unpacked(source.path, source.compression, place.offset) as (content, stored):
            for piece, after in read(content, place, self.chunk_bytes):
                yield piece, after, stored.tell()

    def _rows(self, source: Input, place: Cursor) -> Iterator[tuple[Slice, Cursor, int]]:
        for texts, count in read_parquet(
            source.path, self.text_key, place.offset, self.chunk_bytes
        ):
            row = place.offset + len(texts)
            piece = Slice(place.input, "parquet", place.offset + 1, texts)
            place = Cursor(place.input, row, row)
            yield piece, place, source.bytes * min(row, count) // max(1, count)


def _pieces_of_text(stream: Any, place: Cursor, size: int) -> Iterator[tuple[Slice, Cursor]]:
    for content, ends_text in cut_text(stream, size):
        starts_text, end = place.offset == 0, place.after(content)
        text = content.removeprefix(UTF_8_MARK) if starts_text else content
        yield (
            Slice(place.input, "text", place.line + 1, text, starts_text, ends_text),
            Cursor(place.input + 1) if ends_text else end,
        )
        place = end


def _lines(stream: Any, place: Cursor, size: int) -> Iterator[tuple[Slice, Cursor]]:
    """Yields whole lines; a line that is too long for memory becomes a refused slice."""
    while data := stream.read(size):
        rest = b"" if data.endswith(b"\n") else stream.readline(LONGEST_TEXT_BYTES)
        too_long = len(rest) == LONGEST_TEXT_BYTES and not rest.endswith(b"\n")
        content = data[: data.rfind(b"\n") + 1] if too_long else data + rest
        if content:
            lines, end = (
                content if place.offset else content.removeprefix(UTF_8_MARK),
                place.after(content),
            )
            yield Slice(place.input, "json", place.line + 1, lines), end
            place = end
        if too_long:
            left_out = len(data) + len(rest) - len(content) + skip_line(stream)
            end = Cursor(place.input, place.offset + left_out, place.line + 1)
            reason = f"line longer than {LONGEST_TEXT_BYTES >> 20} MiB"
            yield Slice(place.input, "json", place.line + 1, b"", refused=reason), end
            place = end
