"""Parses slices of files into texts and bad records."""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

from rampcli.data.building.records import Chunk, Slice
from rampcli.data.building.streams import PIECE_BYTES, find_cut

KEYS_SHOWN = 8
JSON_LINES = "one JSON object on each line"
IN_UTF_8 = "text in UTF-8 (`iconv -f CP1252 -t UTF-8 OLD.txt > NEW.txt`, for a file from Windows)"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record without a valid text.

    Attributes:
        line: line or row, from 1.
        remedy: an option or a form of the file with which it has a text, or None.
    """

    input: int
    line: int
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and its size in UTF-8."""

    content: str
    bytes: int

    def pieces(self) -> Iterator[str]:
        """Yields the text; a long one in pieces, cut at the places where a text file is cut."""
        if self.bytes < PIECE_BYTES:
            yield self.content
            return
        data, place = self.content.encode(), 0
        while len(data) - place >= PIECE_BYTES:
            cut = place + find_cut(data[place : place + PIECE_BYTES])
            yield data[place:cut].decode()
            place = cut
        yield data[place:].decode()


class _NoText(Exception):
    """A record has no valid text, for the reason and with the remedy of a `BadRecord`."""

    def __init__(self, reason: str, remedy: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def parse_chunk(chunk: Chunk, text_key: str) -> tuple[list[Text], list[BadRecord]]:
    """Returns the texts and the bad records of a chunk, in order."""
    found = [record for part in chunk.slices for record in parse_slice(part, text_key)]
    texts = [record for record in found if isinstance(record, Text)]
    return texts, [record for record in found if isinstance(record, BadRecord)]


def parse_slice(part: Slice, text_key: str) -> Iterator[Text | BadRecord]:
    """Yields the texts and bad records of a slice, in order.

    In a text file, bad lines are left out and the other lines stay one text.
    """
    if part.refused is not None:
        yield BadRecord(part.input, part.first_line, part.refused)
    elif not isinstance(part.content, bytes):
        for row, content in enumerate(part.content, part.first_line):
            yield _parsed(part, row, content, _decode)
    elif part.kind == "json":
        parse = partial(_parse_json, key=text_key)
        for number, line in enumerate(part.content.split(b"\n"), part.first_line):
            if line and not line.isspace():
                yield _parsed(part, number, line, parse)
    elif isinstance(whole := _parsed(part, part.first_line, part.content, _decode), Text):
        yield whole
    else:
        good = []
        # BytesIO ends lines at line feeds only, `bytes.splitlines` also at carriage returns.
        for number, line in enumerate(BytesIO(part.content), part.first_line):
            found = _parsed(part, number, line, _decode)
            if isinstance(found, Text):
                good.append(found)
            else:
                yield replace(found, remedy=IN_UTF_8)
        yield Text("".join(line.content for line in good), sum(line.bytes for line in good))


def _parsed(
    part: Slice, number: int, record: bytes | None, parse: Callable[[bytes], Text]
) -> Text | BadRecord:
    """Returns the text of a line or row, None being a null, or what is wrong with it."""
    if record is None:
        return BadRecord(part.input, number, "the text is null")
    try:
        return parse(record)
    except _NoText as bad:
        return BadRecord(part.input, number, bad.reason, bad.remedy)


def _decode(content: bytes, remedy: str | None = None) -> Text:
    try:
        return Text(content.decode(), len(content))
    except UnicodeDecodeError as error:
        byte, place = content[error.start], error.start + 1
        reason = f"not UTF-8: byte 0x{byte:02x} at {place:,} of {len(content):,}"
        raise _NoText(reason, remedy) from error


def _parse_json(line: bytes, key: str) -> Text:
    """Returns the text of a line of JSON."""
    decoded = _decode(line, JSON_LINES).content
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise _NoText(f"not JSON: {error}", JSON_LINES) from error
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise _NoText(f"not a JSON object but a {kind}: {_shown(decoded)}", JSON_LINES)
    text = record.get(key)
    if isinstance(text, str):
        try:
            return Text(text, len(text.encode()))
        except UnicodeEncodeError as error:
            place = error.start + 1
            reason = f"{key} is not valid Unicode: lone surrogate at character {place:,}"
    elif key in record:
        reason = f"{key} is not a string but a {type(text).__name__}"
    else:
        names = [_shown(name) for name in list(record)[:KEYS_SHOWN]]
        names += ["..."] if len(record) > KEYS_SHOWN else []
        reason = f"no key {key}; the keys are: {', '.join(names) or 'none'}"
    others = [name for name, value in record.items() if name != key and isinstance(value, str)]
    raise _NoText(reason, f"--text-key {shlex.quote(others[0])}" if others else None)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
