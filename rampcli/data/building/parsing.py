"""Slices of files to texts. What is no text is a bad record, with its place and the reason."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from rampcli.data.building.records import Kind, Slice
from rampcli.data.building.streams import PIECE_BYTES, cut_of

KEYS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no text: the number of its input, its line or row from 1, and why."""

    input: int
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text, and its length in UTF-8."""

    content: str
    bytes: int

    def pieces(self) -> Iterator[str]:
        """The text, in pieces where it is long, cut as a file of the same text is."""
        if self.bytes < PIECE_BYTES:
            yield self.content
            return
        data, place = self.content.encode(), 0
        while len(data) - place >= PIECE_BYTES:
            cut = place + cut_of(data[place : place + PIECE_BYTES])
            yield data[place:cut].decode()
            place = cut
        yield data[place:].decode()


def texts_of(one: Slice, text_key: str) -> Iterator[Text | BadRecord]:
    """The texts of a slice in order, and what is no text. In a text, what can be bad is a line: the text goes on without it."""
    if one.refused is not None:
        yield BadRecord(one.input, one.first_line, one.refused)
    elif not isinstance(one.content, bytes):
        for row, content in enumerate(one.content, one.first_line):
            found = "the text is null" if content is None else _decoded(content)
            yield BadRecord(one.input, row, found) if isinstance(found, str) else found
    elif one.kind is Kind.json:
        for number, line in enumerate(one.content.split(b"\n"), one.first_line):
            if line and not line.isspace():
                found = _text_in(line, text_key)
                yield BadRecord(one.input, number, found) if isinstance(found, str) else found
    else:
        yield from _lines_of_text(one, one.content)


def _lines_of_text(one: Slice, content: bytes) -> Iterator[Text | BadRecord]:
    whole = _decoded(content)
    if isinstance(whole, Text):
        yield whole
        return
    good = []
    for number, line in enumerate(_lines(content), one.first_line):
        found = _decoded(line)
        if isinstance(found, str):
            yield BadRecord(one.input, number, found)
        else:
            good.append(found)
    yield Text("".join(line.content for line in good), sum(line.bytes for line in good))


def _lines(content: bytes) -> list[bytes]:
    """With their ends. Those of bytes.splitlines() are also at a carriage return, which does not count as a line here."""
    *lines, last = content.split(b"\n")
    return [*(line + b"\n" for line in lines), *([last] if last else [])]


def _decoded(content: bytes) -> Text | str:
    """The text, or what is wrong with it."""
    try:
        return Text(content.decode(), len(content))
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{content[error.start]:02x} at {error.start + 1:,} of {len(content):,}"


def _text_in(line: bytes, key: str) -> Text | str:
    """The text of a line of JSON, or what is wrong with the line."""
    decoded = _decoded(line)
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
        return f"no {key}; it has {', '.join(names) or 'no keys'}{', ...' if len(record) > KEYS_SHOWN else ''}"
    text = record[key]
    if not isinstance(text, str):
        return f"{key} is no string but a {type(text).__name__}"
    try:
        return Text(text, len(text.encode()))
    except UnicodeEncodeError as error:
        return f"{key} is no Unicode text: a lone surrogate at character {error.start + 1:,}"


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
