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
from rampcli.own_folder import open_to_read
from rampcli.records import COUNT, MOST, POSITIVE, RATE
from rampcli.run_rows import MAX_ROW_BYTES, METRICS_ROW, NUMBER_OR_NULL, row_of

BLOCK_BYTES = 2**21
"""Bytes that are parsed at once."""
PRECISE = ("step", "time", "consumed_samples", "consumed_tokens")
"""Columns that single precision could not tell apart in a long run."""
_LEAST: dict[Any, int] = {COUNT: 0, POSITIVE: 1, RATE: 0}


@dataclass(slots=True)
class Mark:
    """A place up to which rows have been read.

    Attributes:
        rows: rows before it.
        end: byte after the last of them.
        line: that row as it is in the file.
    """

    rows: int
    end: int
    line: bytes


@dataclass(slots=True)
class Column:
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
        dtype: type of the numbers, except those in `PRECISE`.
        rows: rows that were read.
        resets: how often rows that were read have vanished, because a run resumed before them.
    """

    path: Path
    names: Collection[str] | None = None
    dtype: Any = np.float64
    rows: int = 0
    resets: int = 0
    _columns: dict[str, Column] = field(default_factory=dict)
    _marks: list[Mark] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns the values of a column so far: numbers, NaN if they are null; or text, or None.

        A column of whole numbers without a null has the type int64.
        """
        column = self._columns[name]
        values = column.values[: self.rows]
        return values.astype(np.int64) if column.is_whole else values

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Returns a column of numbers as it is kept, without copying it: NaN if they are null.

        None if there is no such column, or it holds text.
        """
        column = self._columns.get(name)
        return None if column is None or column.is_text else column.values[: self.rows]

    def __iter__(self) -> Any:
        return iter(self._columns)

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read."""
        return self._marks[-1].end if self._marks else 0

    def read(self, *, most_bytes: int | None = None) -> int:
        """Reads rows that were appended, and drops those that have vanished from the file.

        Args:
            most_bytes: stop after about this many bytes. None reads to the end.

        Returns:
            The number of new rows.

        Raises:
            DamagedFileError: a row is damaged. Rows before its block are kept.
        """
        before = self.rows
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
            while most_bytes is None or self.bytes_read - first < most_bytes:
                file.seek(self.bytes_read)
                block = file.read(BLOCK_BYTES)
                whole = block[: block.rfind(b"\n") + 1]
                if whole:
                    self._add(whole)
                elif len(block) > MAX_ROW_BYTES:
                    row_of(block, self.path, self.bytes_read)  # raises: no row is this long
                if len(block) < BLOCK_BYTES:
                    break
        return self.rows - before

    def _drop_vanished(self, file: BinaryIO) -> None:
        """Drops rows that are no longer in the file.

        A run that resumes cuts the file at the checkpoint's step, and then appends to it. So the
        file still begins with the rows before some place.
        """
        kept, beyond = 0, len(self._marks)
        if beyond and self._is_there(file, self._marks[-1]):
            return
        while kept < beyond:
            middle = (kept + beyond) // 2
            if self._is_there(file, self._marks[middle]):
                kept = middle + 1
            else:
                beyond = middle
        self._drop(kept)

    @staticmethod
    def _is_there(file: BinaryIO, mark: Mark) -> bool:
        file.seek(mark.end - len(mark.line))
        return file.read(len(mark.line)) == mark.line

    def _drop(self, marks: int) -> None:
        """Drops the rows behind the first marks."""
        if marks < len(self._marks):
            self.resets += 1
            del self._marks[marks:]
            self.rows = self._marks[-1].rows if self._marks else 0

    def _add(self, block: bytes) -> None:
        """Adds the rows of a block of whole lines."""
        lines = block.splitlines(keepends=True)
        columns = self._parse(lines)
        for name in dict.fromkeys(chain(self._columns, columns)):
            if self.names is None or name in self.names:
                self._extend(name, columns.get(name) or (None,) * len(lines))
        self.rows += len(lines)
        self._marks.append(Mark(self.rows, self.bytes_read + len(block), lines[-1]))

    def _parse(self, lines: Sequence[bytes]) -> dict[str, tuple[Any, ...]]:
        """Returns the columns of lines.

        Raises:
            DamagedFileError: a row is damaged.
        """
        block = b",".join(lines)
        if b"NaN" not in block and b"Infinity" not in block:
            try:
                rows = json.loads(b"[" + block + b"]")
                if len(rows) == len(lines) and _are_sound(columns := transposed(rows)):
                    return columns
            except (ValueError, TypeError, AttributeError, RecursionError):
                pass  # reading line by line finds the damaged one
        offset, rows = self.bytes_read, []
        for line in lines:
            rows.append(row_of(line, self.path, offset))
            offset += len(line)
        return transposed(rows)

    def _extend(self, name: str, values: tuple[Any, ...]) -> None:
        """Adds values to a column. Values that are neither numbers nor text count as null."""
        kinds = set(map(type, values)) - {type(None)}
        column, is_text = self._columns.get(name), kinds == {str}
        if column is None or (is_text and self._is_empty(column)):
            dtype: Any = object if is_text else np.float64 if name in PRECISE else self.dtype
            absent = np.full(self.rows, None if is_text else np.nan, dtype=dtype)
            column = self._columns[name] = Column(absent, is_whole=self.rows == 0)
        if not (is_text or kinds <= {int, float}) or (is_text != column.is_text and kinds):
            values = (None,) * len(values)
        column.is_whole = column.is_whole and kinds == {int} and None not in values
        try:
            column.extend(np.array(values, dtype=column.values.dtype), self.rows)
        except OverflowError as error:
            raise DamagedFileError(f"{self.path} is damaged: {name} is too large") from error

    def _is_empty(self, column: Column) -> bool:
        """Returns whether a column of numbers holds no number yet."""
        return not column.is_text and bool(np.isnan(column.values[: self.rows]).all())


def transposed(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Returns the columns of rows by name, with None where a row does not have one."""
    layouts = set(map(tuple, rows))
    if len(layouts) == 1:
        return dict(zip(*layouts, zip(*map(dict.values, rows), strict=True), strict=True))
    names = dict.fromkeys(chain.from_iterable(layouts))
    return {name: tuple(row.get(name) for row in rows) for name in names}


def _are_sound(columns: Mapping[str, tuple[Any, ...]]) -> bool:
    """Returns whether there are the columns that readers rely on, with numbers in their ranges."""
    for word, shape in METRICS_ROW.items():
        name = word.removesuffix("?")
        if name not in columns:
            if name == word:
                return False
            continue
        values = columns[name]
        if shape == NUMBER_OR_NULL or name != word:
            values = tuple(value for value in values if value is not None)
        if not values:
            continue
        least = min(values)
        if (
            not set(map(type, values)) <= ({int} if shape in (COUNT, POSITIVE) else {int, float})
            or least < _LEAST.get(shape, -MOST)
            or (shape == RATE and least == 0)
            or max(values) > MOST
        ):
            return False
    return True
