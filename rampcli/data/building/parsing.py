"""Parses slices of files into texts and bad records."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from rampcli.data.building.records import Kind, Slice
from rampcli.data.building.streams import PIECE_BYTES, find_cut

KEYS_SHOWN = 8

IN_UTF_8 = "text in UTF-8 (`iconv -f CP1252 -t UTF-8 OLD.txt > NEW.txt`, for a file from Windows)"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record without a valid text.

    Attributes:
        input: index of the input.
        line: line or row, from 1.
        reason: what is wrong with it.
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


def parse_slice(part: Slice, text_key: str) -> Iterator[Text | BadRecord]:
    """Yields the texts and bad records of a slice, in order.

    In a text file, bad lines are left out and the other lines stay one text.
    """
    if part.refused is not None:
        yield BadRecord(part.input, part.first_line, part.refused)
    elif not isinstance(part.content, bytes):
        for row, content in enumerate(part.content, part.first_line):
            found = "the text is null" if content is None else _decode(content)
            yield BadRecord(part.input, row, found) if isinstance(found, str) else found
    elif part.kind is Kind.json:
        for number, line in enumerate(part.content.split(b"\n"), part.first_line):
            if line and not line.isspace():
                found = _parse_json(line, text_key)
                if isinstance(found, str):
                    remedy = _remedy_of_json(line, text_key)
                    yield BadRecord(part.input, number, found, remedy)
                else:
                    yield found
    else:
        yield from _texts_in_lines(part, part.content)


def _texts_in_lines(part: Slice, content: bytes) -> Iterator[Text | BadRecord]:
    whole = _decode(content)
    if isinstance(whole, Text):
        yield whole
        return
    good = []
    for number, line in enumerate(_lines(content), part.first_line):
        found = _decode(line)
        if isinstance(found, str):
            yield BadRecord(part.input, number, found, IN_UTF_8)
        else:
            good.append(found)
    yield Text("".join(line.content for line in good), sum(line.bytes for line in good))


def _lines(content: bytes) -> list[bytes]:
    """Splits after line feeds only; `bytes.splitlines` would also split at carriage returns."""
    *lines, last = content.split(b"\n")
    return [*(line + b"\n" for line in lines), *([last] if last else [])]


def _decode(content: bytes) -> Text | str:
    """Returns the text, or a message if it is not valid UTF-8."""
    try:
        return Text(content.decode(), len(content))
    except UnicodeDecodeError as error:
        byte, place = content[error.start], error.start + 1
        return f"not UTF-8: byte 0x{byte:02x} at {place:,} of {len(content):,}"


def _parse_json(line: bytes, key: str) -> Text | str:
    """Returns the text of a line of JSON, or a message if the line has none."""
    decoded = _decode(line)
    if isinstance(decoded, str):
        return decoded
    try:
        record = json.loads(decoded.content)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(record, dict):
        return f"not a JSON object but a {type(record).__name__}: {_shown(decoded.content)}"
    if key not in record:
        names = [_shown(name) for name in list(record)[:KEYS_SHOWN]]
        names += ["..."] if len(record) > KEYS_SHOWN else []
        return f"no key {key}; the keys are: {', '.join(names) or 'none'}"
    text = record[key]
    if not isinstance(text, str):
        return f"{key} is not a string but a {type(text).__name__}"
    try:
        return Text(text, len(text.encode()))
    except UnicodeEncodeError as error:
        return f"{key} is not valid Unicode: lone surrogate at character {error.start + 1:,}"


def _remedy_of_json(line: bytes, key: str) -> str | None:
    """Returns what would give a line of JSON its text: another key, or other lines."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        return "one JSON object on each line"
    texts = [name for name, value in record.items() if name != key and isinstance(value, str)]
    return f"--text-key {shlex.quote(texts[0])}" if texts else None


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
