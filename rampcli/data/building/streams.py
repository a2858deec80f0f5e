"""Reads files as streams of bytes or rows, decompressed. Errors name the file and the reason."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rampcli.errors import UsageError
from rampcli.extras import requiring
from rampcli.guarded_folder import open_to_read

PIECE_BYTES = 1 << 20
"""Longer texts are encoded in pieces of about this size."""
ZSTD_BLOCK_BYTES = 4096
"""Bytes that are decompressed at once; a malicious file expands them to 128 MB."""
MOST_ROWS_AT_ONCE = 1024

# Best first. Cutting by the first, second or fourth pattern does not change the words that GPT-2's
# pre-tokenisation and similar ones find in the text.
CUTS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (rb".*\S\n(?=\S)", rb".*\n(?=\S)", rb".*\n", rb".*\S(?= \S)", rb".*\s(?=\S)")
)


def find_cut(data: bytes) -> int:
    """Returns where to cut a text that continues after `data`.

    The cut is in the second half: after a line, else at a space, else between two characters.
    """
    for pattern in CUTS:
        if found := pattern.match(data, len(data) // 2):
            return found.end()
    cut = len(data) - 1
    while cut > len(data) - 4 and 0x80 <= data[cut] < 0xC0:  # in the middle of a character
        cut -= 1
    return cut


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error of reading or decompressing into a UsageError that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot read {path}: {reason}",
            remedy="a complete, undamaged and readable file",
        ) from error


class Stream:
    """The bytes of a file, decompressed."""

    def __init__(self, path: Path, compression: str | None) -> None:
        self.path = path
        self.compressed = compression is not None
        with reading(path):
            self._raw = open_to_read(path)
            self._content = self._unpacked(compression)

    def _unpacked(self, compression: str | None) -> Any:
        if compression == ".gz":
            return gzip.GzipFile(fileobj=self._raw)
        if compression == ".zst":
            with requiring("zstandard", purpose=f"reading {self.path}"):
                return io.BufferedReader(_Zstandard(self._raw), buffer_size=1 << 17)
        return self._raw

    def close(self) -> None:
        """Closes the file."""
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Returns `size` bytes, or fewer at the end."""
        with reading(self.path):
            return bytes(self._content.read(size))

    def read_line(self, limit: int) -> bytes:
        """Returns the rest of a line with its line feed, or its first `limit` bytes."""
        with reading(self.path):
            return bytes(self._content.readline(limit))

    def skip_line(self) -> int:
        """Skips the rest of a line; returns its length in bytes."""
        skipped = 0
        while piece := self.read_line(PIECE_BYTES):
            skipped += len(piece)
            if piece.endswith(b"\n"):
                break
        return skipped

    def skip(self, offset: int) -> None:
        """Continues at a byte of the content; decompresses the bytes before it if necessary."""
        if not self.compressed:
            self._content.seek(offset)
            return
        while offset and (piece := self.read(min(offset, PIECE_BYTES))):
            offset -= len(piece)

    def consumed_bytes(self) -> int:
        """Returns how many bytes of the stored file have been read."""
        return self._raw.tell()


class _Zstandard(io.RawIOBase):
    """Reads consecutive zstd frames. zstandard's own reader does not notice a truncated file."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._library = zstandard
        self._frame: Any = None
        self._packed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            self._packed = self._packed or self._raw.read(ZSTD_BLOCK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file is truncated")
                return 0
            self._decompress()
        size = min(len(buffer), len(self._content))
        buffer[:size], self._content = self._content[:size], self._content[size:]
        return size

    def _decompress(self) -> None:
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        try:
            self._content, self._packed = memoryview(self._frame.decompress(self._packed)), b""
        except self._library.ZstdError as error:
            raise OSError(str(error)) from error
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None


class Rows:
    """The texts in a column of a Parquet file, as bytes; None for a null."""

    def __init__(self, path: Path, column: str) -> None:
        with requiring("pyarrow", purpose=f"reading {path}"):
            import pyarrow  # type: ignore[import-untyped]
            from pyarrow import parquet
        self._arrow = pyarrow
        self.path = path
        self.column = column
        with self._reading():
            self._file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=PIECE_BYTES)
            schema = self._file.schema_arrow
        if column not in schema.names:
            raise UsageError(
                f"{path} has no column {column}",
                remedy=f"--text-key with one of {', '.join(schema.names)}",
            )
        if schema.names.count(column) > 1:
            raise UsageError(
                f"{path} has several columns named {column}",
                remedy="a file whose columns have different names",
            )
        kind = schema.field(column).type
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise UsageError(
                f"the column {column} of {path} holds {kind}, not text",
                remedy="--text-key with a column of text",
            )
        self.count: int = self._file.metadata.num_rows

    def batches(self, first: int, size: int) -> Iterator[list[bytes | None]]:
        """Yields rows from `first` on, in lists of about `size` bytes, one row group at a time."""
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            described = metadata.row_group(group)
            if first >= described.num_rows:
                first -= described.num_rows
                continue
            at_once = max(
                1,
                min(
                    MOST_ROWS_AT_ONCE,
                    size * described.num_rows // max(1, described.total_byte_size),
                ),
            )
            for texts in self._texts(group, at_once):
                if rest := texts[first:]:
                    yield from _in_parts(rest, size)
                first = max(0, first - len(texts))

    def _texts(self, group: int, at_once: int) -> Iterator[list[bytes | None]]:
        with self._reading():
            for batch in self._file.iter_batches(
                at_once, row_groups=[group], columns=[self.column], use_threads=False
            ):
                column = batch.column(0)
                if self._arrow.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                large = self._arrow.types.is_large_string(column.type)
                yield column.cast(
                    self._arrow.large_binary() if large else self._arrow.binary()
                ).to_pylist()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self.path):
            try:
                yield
            except (
                self._arrow.ArrowException,
                ValueError,  # column names that are not UTF-8
            ) as error:
                raise OSError(" ".join(str(error).split())) from error


def _in_parts(texts: list[bytes | None], size: int) -> Iterator[list[bytes | None]]:
    """Splits rows into lists of about `size` bytes."""
    first = length = 0
    for row, text in enumerate(texts):
        length += len(text or b"")
        if length >= size:
            yield texts[first : row + 1]
            first, length = row + 1, 0
    if first < len(texts):
        yield texts[first:]
