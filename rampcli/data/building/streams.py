"""Reads files as streams of bytes or rows, decompressed. Errors name the file and the reason."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rampcli.data.building.parquet_pages import largest_page_bytes
from rampcli.errors import UsageError, reading
from rampcli.files.guarded_folder import open_to_read
from rampcli.plugins.extras import requiring

TEXT_PIECE_BYTES = 1 << 20
"""Longer texts are encoded in pieces of about this size."""
ZSTD_BLOCK_BYTES = 4096
"""Compressed bytes that are read at once. Even in a malicious file they hold at most 128 MB."""
LONGEST_TEXT_BYTES = 128 << 20
"""Longest text of a row or a line of JSON, which is held in memory several times."""
MOST_PAGE_BYTES = 1 << 30
"""Longest page of Parquet, which is held in memory several times."""
MOST_ROWS_AT_ONCE = 1024
MOST_BATCH_BYTES = 256 << 20
"""Rows at once have about this many bytes even if each is as long as the largest page: all rows may
name one entry of a dictionary, or begin as the row before."""

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


def cut_text(stream: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
    """Yields a text, whole or in pieces of about `size` bytes, and True with its last piece.

    The end of a piece depends only on its start.
    """
    data = b""
    while len(data := data + stream.read(size - len(data))) == size:
        cut = find_cut(data)
        yield data[:cut], False
        data = data[cut:]
    yield data, True


@contextmanager
def _reading(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turns an error of reading or decoding a file into a UsageError that names the file.

    Args:
        kinds: errors of the decoder, besides OSError.
    """
    with reading(path, remedy="a complete, undamaged and readable file"):
        try:
            yield
        except kinds as error:
            raise OSError(" ".join(str(error).split())) from error


@contextmanager
def open_unpacked(
    path: Path, compression: str | None, offset: int
) -> Iterator[tuple[Any, BinaryIO]]:
    """Opens a file; yields a stream of its content, decompressed, and the file as it is stored.

    Args:
        offset: byte of the content at which the stream begins.

    Raises:
        UsageError: the file cannot be opened, or reading the content fails.
    """
    with _reading(path, EOFError, zlib.error), open_to_read(path) as stored:
        content: Any = stored
        if compression == ".gz":
            content = gzip.GzipFile(fileobj=stored)
        elif compression == ".zst":
            with requiring("zstandard", purpose=f"reading {path}"):
                content = io.BufferedReader(_Zstandard(stored), buffer_size=1 << 17)
        if content is stored:
            stored.seek(offset)
        else:
            while offset and (piece := content.read(min(offset, TEXT_PIECE_BYTES))):
                offset -= len(piece)
        yield content, stored


def skip_line(content: Any) -> int:
    """Skips the rest of a line; returns its length in bytes."""
    skipped = 0
    while piece := content.readline(TEXT_PIECE_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


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


def read_parquet(
    path: Path, column: str, first: int, size: int
) -> Iterator[tuple[list[bytes | str], int]]:
    """Reads the texts in a column of a Parquet file, as bytes; a string is why there is none.

    Yields:
        Rows from `first` on, in lists of about `size` bytes, and the number of rows of the file.

    Raises:
        UsageError: the file cannot be read, or has no such column of text.
    """
    with requiring("pyarrow", purpose=f"reading {path}"):
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    # A ValueError is raised for column names that are not UTF-8.
    with _reading(path, pyarrow.ArrowException, ValueError):
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=TEXT_PIECE_BYTES)
        _check_column(path, file.schema_arrow, column)
        for texts in _texts_from(path, file, column, first, size):
            for part in _in_parts(texts, size):
                yield part, file.metadata.num_rows


def _check_column(path: Path, schema: Any, column: str) -> None:
    if column not in schema.names:
        raise UsageError(
            f"{path} has no column {column}",
            remedy=f"--text-key with one of {', '.join(_columns_of_text(schema) or schema.names)}",
        )
    if schema.names.count(column) > 1:
        raise UsageError(
            f"{path} has several columns named {column}",
            remedy="a file whose columns have different names",
        )
    if column not in _columns_of_text(schema):
        kind = schema.field(column).type
        raise UsageError(
            f"the column {column} of {path} holds {kind}, not text",
            remedy=f"--text-key with one of {', '.join(columns)}"
            if (columns := _columns_of_text(schema))
            else "a file with a column of text",
        )


def _columns_of_text(schema: Any) -> list[str]:
    """Returns the names of the columns that hold text, in any of Arrow's types for it."""
    from pyarrow import types

    kinds = [
        (field.name, field.type.value_type if types.is_dictionary(field.type) else field.type)
        for field in schema
    ]
    of_text = (types.is_string, types.is_large_string, types.is_string_view)
    return [name for name, kind in kinds if any(is_one(kind) for is_one in of_text)]


def _texts_from(
    path: Path, file: Any, column: str, first: int, size: int
) -> Iterator[list[bytes | str]]:
    """Yields the texts from row `first` on, at most `MOST_ROWS_AT_ONCE` of a row group at once."""
    import pyarrow

    largest_pages = largest_page_bytes(path, column)
    if max(largest_pages, default=0) > MOST_PAGE_BYTES:
        raise UsageError(
            f"the column {column} of {path} has a page longer than {MOST_PAGE_BYTES >> 20:,} MiB",
            remedy="a file with smaller pages, and texts of at most"
            f" {LONGEST_TEXT_BYTES >> 20} MiB",
        )
    for group in range(file.num_row_groups):
        described = file.metadata.row_group(group)
        if first >= described.num_rows:
            first -= described.num_rows
            continue
        fitting = size * described.num_rows // max(1, described.total_byte_size)
        safe = MOST_BATCH_BYTES // max(1, largest_pages[group])
        for batch in file.iter_batches(
            max(1, min(MOST_ROWS_AT_ONCE, fitting, safe)),
            row_groups=[group],
            columns=[column],
            use_threads=False,
        ):
            # Offsets of 64 bits: the texts of a batch may have more than 2 GiB together.
            yield [_text_of(row) for row in batch.column(0).cast(pyarrow.large_binary())[first:]]
            first = max(0, first - batch.num_rows)


def _text_of(row: Any) -> bytes | str:
    if not row.is_valid:
        return "the text is null"
    text = row.as_buffer()  # not a copy
    if text.size > LONGEST_TEXT_BYTES:
        return f"text longer than {LONGEST_TEXT_BYTES >> 20} MiB"
    return bytes(text)


def _in_parts(texts: list[bytes | str], size: int) -> Iterator[list[bytes | str]]:
    first = length = 0
    for row, text in enumerate(texts):
        length += len(text)
        if length >= size:
            yield texts[first : row + 1]
            first, length = row + 1, 0
    if first < len(texts):
        yield texts[first:]
