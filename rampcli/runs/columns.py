"""Reads metrics.jsonl into columns, and keeps them up to date while the file grows."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rampcli.errors import DamagedFileError
from rampcli.files.guarded_folder import open_to_read
from rampcli.files.records import check_shape
from rampcli.runs.metrics import METRICS_ROW, PLACE_COLUMNS
from rampcli.runs.rows import MAX_ROW_BYTES, row_of
from rampcli.runs.time_left import RECENT_STEPS

BLOCK_BYTES = 2**21
"""Bytes that are parsed at once."""
MOST_COLUMNS = 500
"""Most columns of a file. Each takes time and memory for every row, also where it is absent."""
MARK_BYTES = 2**18
"""Least distance between marks, which keeps them few in a file that grows row by row."""


@dataclass(slots=True)
class Mark:
    """A place between two rows, and the row before it, which shows whether the file has changed.

    Attributes:
        rows: number of rows before the place.
        end: byte of the place in the file.
        line: the last row before it, as it is in the file.
    """

    rows: int
    end: int
    line: bytes


@dataclass(slots=True)
class MetricColumn:
    """A column that grows. Absent values are NaN, or None in text.

    Attributes:
        values: its values, and room for more.
        is_whole: whether all values so far are whole numbers.
    """

    values: NDArray[Any]
    is_whole: bool = True

    @property
    def is_text(self) -> bool:
        """Whether it holds text rather than numbers."""
        return bool(self.values.dtype == object)

    def extend(self, new: NDArray[Any], rows: int) -> None:
        """Adds values behind the first `rows`."""
        if rows + len(new) > len(self.values):
            larger = np.empty(2 * (rows + len(new)), dtype=self.values.dtype)
            larger[:rows] = self.values[:rows]
            self.values = larger
        self.values[rows : rows + len(new)] = new


@dataclass(slots=True)
class Columns:
    """The columns of a file of metrics, read as far as `read` has come.

    Attributes:
        path: metrics.jsonl.
        names: columns to read, or None for all.
        dtype: type of the numbers, except `PLACE_COLUMNS`, which single precision could not tell
            apart in a long run.
        resets: how often rows that were read have vanished, because a run resumed before them.
        is_at_end: whether the last call of `read` has read everything.
        marks: ends of what was read, `MARK_BYTES` apart, which show whether the file was rewritten.
        last: the last rows, at most `RECENT_STEPS`, with all of their columns.
    """

    path: Path
    names: Collection[str] | None = None
    dtype: Any = np.float64
    rows: int = 0
    resets: int = 0
    is_at_end: bool = True
    last: tuple[dict[str, Any], ...] = ()
    _columns: dict[str, MetricColumn] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns the values of a column so far. Null is NaN among numbers, and None among text.

        A column of whole numbers without a null has the type int64.
        """
        column = self._columns[name]
        values = column.values[: self.rows]
        return values.astype(np.int64) if column.is_whole else values

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Returns a column of numbers as it is kept, without copying it. Null is NaN.

        Returns None if there is no such column, or if it holds text.
        """
        column = self._columns.get(name)
        return None if column is None or column.is_text else column.values[: self.rows]

    def __iter__(self) -> Any:
        return iter(self._columns)

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read."""
        return self.marks[-1].end if self.marks else 0

    def read(self, *, most_bytes: int | None = None) -> int:
        """Reads rows that were appended, and drops rows that have vanished from the file.

        Args:
            most_bytes: stop after about this many bytes. None reads to the end.

        Returns:
            The number of new rows.

        Raises:
            DamagedFileError: a row is damaged. Rows before it are kept.
        """
        self.is_at_end = True
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            self._drop(0)
            return 0
        except OSError as error:
            raise DamagedFileError(f"cannot read {self.path}: {error.strerror}") from error
        with file:
            self._drop_vanished(file)
            before, first = self.rows, self.bytes_read
            while self._read_block(file):
                if most_bytes is not None and self.bytes_read - first >= most_bytes:
                    self.is_at_end = False
                    break
        return self.rows - before

    def _read_block(self, file: BinaryIO) -> bool:
        """Reads the next rows, and returns whether there may be more."""
        file.seek(self.bytes_read)
        block = file.read(BLOCK_BYTES)
        is_full = len(block) == BLOCK_BYTES
        if b"\n" not in block:  # a row may be longer than a block
            block += file.readline(MAX_ROW_BYTES + 1)
        whole = block[: block.rfind(b"\n") + 1]
        if whole:
            self._add(whole)
        elif len(block) > MAX_ROW_BYTES:
            row_of(block, self.path, self.bytes_read)  # raises: no row is this long
        return is_full and len(whole) > 0

    def _drop_vanished(self, file: BinaryIO) -> None:
        """Drops rows that are no longer in the file.

        A run that resumes cuts the file at the checkpoint's step, and then appends to it. So a
        binary search finds the last mark that is still there.
        """
        kept, beyond = 0, len(self.marks)
        if beyond and self._is_there(file, self.marks[-1]):
            return
        while kept < beyond:
            middle = (kept + beyond) // 2
            if self._is_there(file, self.marks[middle]):
                kept = middle + 1
            else:
                beyond = middle
        self._drop(max(0, kept - 1))  # rows before the last mark are read again for `last`

    @staticmethod
    def _is_there(file: BinaryIO, mark: Mark) -> bool:
        file.seek(mark.end - len(mark.line))
        return file.read(len(mark.line)) == mark.line

    def _drop(self, marks: int) -> None:
        """Drops the rows behind the first marks."""
        if marks < len(self.marks):
            self.resets += 1
            del self.marks[marks:]
            self.rows = self.marks[-1].rows if self.marks else 0
            self.last = ()

    def _add(self, block: bytes) -> None:
        """Adds the rows of a block of whole lines.

        Raises:
            DamagedFileError: a row is damaged. Rows before it are added.
        """
        lines = block.splitlines(keepends=True)
        parsed = _parsed_together(lines)
        if parsed is not None:
            self._add_rows(*parsed, lines)
            return
        offset, rows = self.bytes_read, list[dict[str, Any]]()
        try:
            for line in lines:
                rows.append(row_of(line, self.path, offset))
                offset += len(line)
        finally:
            self._add_rows(rows, transposed(rows, where=self.path), lines[: len(rows)])

    def _add_rows(
        self,
        rows: Sequence[dict[str, Any]],
        columns: Mapping[str, tuple[Any, ...]],
        lines: Sequence[bytes],
    ) -> None:
        """Adds rows, given as they are, as columns, and as the lines that hold them."""
        if not lines:
            return
        if len(self._columns.keys() | columns.keys()) > MOST_COLUMNS:
            raise DamagedFileError(f"{self.path} is damaged: more than {MOST_COLUMNS:,} columns")
        for name in dict.fromkeys(chain(self._columns, columns)):
            if self.names is None or name in self.names:
                self._extend(name, columns.get(name) or (None,) * len(lines))
        self.rows += len(lines)
        self.last = (*self.last, *rows[-RECENT_STEPS:])[-RECENT_STEPS:]
        mark = Mark(self.rows, self.bytes_read + sum(map(len, lines)), lines[-1])
        begin = self.marks[-2].end if len(self.marks) > 1 else 0
        if self.marks and mark.end - begin < MARK_BYTES:
            self.marks.pop()
        self.marks.append(mark)

    def _extend(self, name: str, values: tuple[Any, ...]) -> None:
        """Adds values to a column. Values that are neither numbers nor text count as null."""
        kinds = set(map(type, values)) - {type(None)}
        column, is_text = self._columns.get(name), kinds == {str}
        has_number = column is not None and (
            column.is_text or not np.isnan(column.values[: self.rows]).all()
        )
        if column is None or (is_text and not has_number):
            dtype: Any = object if is_text else np.float64 if name in PLACE_COLUMNS else self.dtype
            absent = np.full(self.rows, None if is_text else np.nan, dtype=dtype)
            column = self._columns[name] = MetricColumn(absent, is_whole=self.rows == 0)
        if not (is_text or kinds <= {int, float}) or (is_text != column.is_text and kinds):
            values = (None,) * len(values)
        column.is_whole = column.is_whole and kinds == {int} and None not in values
        try:
            column.extend(np.array(values, dtype=column.values.dtype), self.rows)
        except OverflowError as error:
            raise DamagedFileError(f"{self.path} is damaged: {name} is too large") from error


def _parsed_together(
    lines: Sequence[bytes],
) -> tuple[list[dict[str, Any]], dict[str, tuple[Any, ...]]] | None:
    """Returns the rows in some lines, also as columns, or None if a line may be damaged.

    Much faster than one line at a time.
    """
    block = b",".join(lines)
    if b"NaN" in block or b"Infinity" in block:
        return None
    try:
        rows = json.loads(b"[" + block + b"]")
        columns = transposed(rows)
        _check_columns(columns)
        return (rows, columns) if len(rows) == len(lines) else None
    except (DamagedFileError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def transposed(
    rows: Sequence[dict[str, Any]], *, where: object = "the file"
) -> dict[str, tuple[Any, ...]]:
    """Returns the columns of rows by name, with None where a row does not have one.

    Args:
        where: the file, for the message of an error.

    Raises:
        DamagedFileError: there are more than `MOST_COLUMNS`.
    """
    layouts = set(map(tuple, rows))
    if len(layouts) == 1:
        return dict(zip(*layouts, zip(*map(dict.values, rows), strict=True), strict=True))
    names = dict.fromkeys(chain.from_iterable(layouts))
    if len(names) > MOST_COLUMNS:
        raise DamagedFileError(f"{where} is damaged: more than {MOST_COLUMNS:,} columns")
    return {name: tuple(row.get(name) for row in rows) for name in names}


def _check_columns(columns: Mapping[str, tuple[Any, ...]]) -> None:
    """Checks the columns that readers rely on, by values that stand for all of them.

    Raises:
        DamagedFileError: a column is missing, or a value has the wrong type or is out of range.
    """
    for word, shape in METRICS_ROW.items():
        name = word.removesuffix("?")
        values = numbers = columns.get(name, ())
        if None in values:
            numbers = tuple(value for value in values if value is not None)
        of_each_type = numbers if name != word else values
        some = [*dict(zip(map(type, of_each_type), of_each_type, strict=True)).values()]
        if numbers:
            some += [min(numbers), max(numbers)]
        check_shape(some, [shape], where=name)
        if not some and name == word:
            raise DamagedFileError(f"{name} is missing")
