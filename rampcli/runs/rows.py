"""The rows of metrics.jsonl, events.jsonl and responses.jsonl: their shapes, and ways to read them.

Rows are appended; an incomplete last line is ignored. Rows of steps are in the order of the steps,
so a few of them are found in a file of any size without reading the others.
"""

import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, BinaryIO

from rampcli.errors import DamagedFileError
from rampcli.files.checksums import SUMMED_PIECE_BYTES
from rampcli.files.guarded_folder import open_to_read
from rampcli.files.records import COUNT, MOST, TIME, check_shape, parse_json
from rampcli.runs.event_kinds import EVENTS, OTHER
from rampcli.runs.metrics import METRICS_ROW

MAX_ROW_BYTES = 2**20
LAST_BYTES = 2**15
"""Bytes that are read at once to find the last rows of a file."""
LAST_EVENT_BYTES = 2**18
"""Bytes at the end of events.jsonl that `last_events` reads at least: thousands of rows."""
MOST_SEARCHED_BYTES = 2**23
"""Bytes that it reads at most."""
_KIND = re.compile(rb'"event": ?"(\w+)"')
_CORPUS = re.compile(rb'"corpus": ?("(?:[^"\\]|\\.)*")')

EVENT_ROW = {"event": str, "time": TIME}
"""Shape of the columns that all events have (notation of `rampcli.files.records`)."""
SHAPES: dict[str, dict[str, Any]] = {"metrics": METRICS_ROW, "responses": {"step": COUNT}}
"""Shapes of rows by the beginning of their file's name. Other files have events."""


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a JSON lines file of a run. Raises what `Tail.rows` raises."""
    return Tail(path).rows()


def loss_of(row: Mapping[str, Any]) -> float:
    """Returns the loss of a metrics row: NaN if it is null, which stands for not finite."""
    return math.nan if row["loss"] is None else float(row["loss"])


def number_or_none(value: Any) -> float | None:
    """Returns a value from a row if it is a number that can be added up, else None."""
    return value if type(value) in (int, float) and -MOST <= value <= MOST else None


@dataclass(slots=True)
class Tail:
    """Reads the rows of a JSON lines file as they are appended.

    Attributes:
        path: metrics.jsonl, responses.jsonl or events.jsonl.
        offset: byte after the last row that was read.
    """

    path: Path
    offset: int = 0

    def skip(self) -> None:
        """Skips all complete rows. The next row will replace an incomplete last line."""
        with suppress(FileNotFoundError):
            self.offset = end_of_rows(self.path)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows that were appended since the last call.

        Raises:
            DamagedFileError: a row is damaged.
        """
        file = _open(self.path)
        if file is None:
            return
        with file:
            file.seek(self.offset)
            while line := _line(file, self.path):
                row = row_of(line, self.path, self.offset)
                self.offset += len(line)
                yield row


def row_of(line: bytes, path: Path, offset: int) -> dict[str, Any]:
    """Returns the row in a line that begins at byte `offset` of a file.

    Raises:
        DamagedFileError: the row is damaged.
    """
    shape = SHAPES.get(path.name.partition(".")[0], EVENT_ROW)
    where = f"{path}, byte {offset:,},"
    try:
        row: dict[str, Any] = parse_json(line, shape, where=where)
        if shape is EVENT_ROW:
            check_shape(row, EVENTS.get(row["event"], OTHER).columns, where=where)
    except DamagedFileError as error:
        error.remedies = (f"move {path} away: the run resumes without its rows",)
        raise
    return row


def end_of_rows(path: Path) -> int:
    """Returns the byte after the last complete line."""
    with open_to_read(path) as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - SUMMED_PIECE_BYTES)
            file.seek(begin)
            if (last := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + last + 1
            end = begin
    return 0


def last_rows(
    path: Path, count: int, *, holding: str = "", among: int | None = None
) -> list[dict[str, Any]]:
    """Returns the last complete rows of a file, at most `count`, in their order.

    Reads only the end of the file.

    Args:
        holding: text in the rows to return. Others are not parsed.
        among: number of last rows to look at, or None for all.

    Raises:
        DamagedFileError: one of them is damaged.
    """
    file = _open(path)
    if file is None:
        return []
    with file:
        last, text = islice(_lines_backwards(file, path), among), holding.encode()
        lines = list(islice(((offset, line) for offset, line in last if text in line), count))
    return [row_of(line, path, offset) for offset, line in reversed(lines)]


def last_events(path: Path, kinds: Collection[str]) -> list[dict[str, Any]]:
    """Returns the newest events of some kinds in events.jsonl, in order.

    These are the events in its last `LAST_EVENT_BYTES`. If the newest `launch` is farther back,
    they are also the newest event of each kind, and of each corpus, since that `launch`, within
    `MOST_SEARCHED_BYTES`. Other rows are not parsed.

    Raises:
        DamagedFileError: one of the events is damaged, or a line is too long to be a row.
    """
    file = _open(path)
    if file is None:
        return []
    found, seen, launched = list[dict[str, Any]](), set[tuple[bytes, bytes]](), False
    wanted = {kind.encode() for kind in kinds}
    with file:
        end = file.seek(0, os.SEEK_END)
        for offset, line in _lines_backwards(file, path):
            is_last = end - offset <= LAST_EVENT_BYTES
            if not is_last and (launched or end - offset > MOST_SEARCHED_BYTES):
                break
            match = _KIND.search(line)
            kind = b"" if match is None else match[1]
            launched = launched or kind == b"launch"
            if kind not in wanted:
                continue
            corpus = _CORPUS.search(line)
            key = kind, corpus[1] if corpus else b""
            if is_last or key not in seen:
                found.append(row_of(line, path, offset))
                seen.add(key)
    return found[::-1]


def end_of_step(path: Path, step: int) -> int:
    """Returns the byte after the last row whose step is at most `step`.

    Reads only the rows that a binary search meets.

    Raises:
        DamagedFileError: one of them is damaged.
    """
    file = _open(path)
    if file is None:
        return 0
    with file:
        # Rows that begin before `low` have at most this step; from `high` on, they have later ones.
        low, high = 0, end_of_rows(path)
        while low < high:
            middle = (low + high) // 2
            begin = low
            if middle > low:  # the first line that begins there or later
                file.seek(middle - 1)
                begin = middle - 1 + len(_line(file, path))
            if begin < high:
                file.seek(begin)
                line = _line(file, path)
                if row_of(line, path, begin)["step"] <= step:
                    low = begin + len(line)
                    continue
            high = middle
    return low


def _open(path: Path) -> BinaryIO | None:
    """Opens a file of rows for reading, or returns None if it does not exist."""
    try:
        return open_to_read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFileError(f"cannot read {path}: {error.strerror}") from error


def _lines_backwards(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the whole lines of a file, each with the byte at which it begins, the last one first.

    Raises:
        DamagedFileError: a line is too long to be a row.
    """
    begin, rest = file.seek(0, os.SEEK_END), b""
    while begin > 0:
        behind, begin = begin, max(0, begin - LAST_BYTES)
        file.seek(begin)
        piece = file.read(behind - begin) + rest
        whole = piece[: piece.rfind(b"\n") + 1].splitlines(keepends=True)
        lines = list(zip(accumulate(map(len, whole), initial=begin), whole, strict=False))
        if begin > 0:  # the first line may be incomplete
            del lines[:1]
        rest = piece[: lines[0][0] - begin] if lines else piece
        if len(rest) > MAX_ROW_BYTES + LAST_BYTES:
            raise _too_long(path)
        yield from reversed(lines)


def _line(file: BinaryIO, path: Path) -> bytes:
    """Returns the rest of the line at the present byte, or no bytes if it is incomplete.

    Raises:
        DamagedFileError: the line is too long to be a row.
    """
    line = file.readline(MAX_ROW_BYTES)
    if line.endswith(b"\n"):
        return line
    if len(line) == MAX_ROW_BYTES:
        raise _too_long(path)
    return b""


def _too_long(path: Path) -> DamagedFileError:
    return DamagedFileError(f"{path} is damaged: a line is longer than {MAX_ROW_BYTES:,} bytes")
