"""Parses chunks to texts, and encodes these to tokens."""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.records import Chunk, Slice
from rampcli.data.building.streams import TEXT_PIECE_BYTES, cut_text
from rampcli.data.texts import convert_remedy, wide_encoding
from rampcli.data.tokenizer import encoder_of, open_tokenizer
from rampcli.errors import UsageError

KEYS_SHOWN = 8
JSON_LINES_WANTED = "one JSON object on each line"


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


def parse_chunk(chunk: Chunk, text_key: str) -> tuple[list[str], list[BadRecord]]:
    """Returns the texts and the bad records of a chunk, in order."""
    found = [record for part in chunk.slices for record in parse_slice(part, text_key)]
    texts = [record for record in found if isinstance(record, str)]
    return texts, [record for record in found if isinstance(record, BadRecord)]


def parse_slice(part: Slice, text_key: str) -> Iterator[str | BadRecord]:
    """Yields the texts and bad records of a slice, in order.

    In a text file, bad lines are left out and the other lines stay one text.
    """
    bad = partial(BadRecord, part.input)
    if part.refused is not None:
        yield bad(part.first_line, part.refused)
    elif not isinstance(part.content, bytes):
        for row, content in enumerate(part.content, part.first_line):
            if isinstance(content, str):
                yield bad(row, content)
            else:
                yield _decode(content, partial(bad, row))
    elif (encoding := wide_encoding(part.content)) is not None:
        remedy = convert_remedy(part.content)
        yield bad(part.first_line, f"the text is in {encoding}, not in UTF-8", remedy)
    elif part.kind == "json":
        for number, line in enumerate(part.content.split(b"\n"), part.first_line):
            if line and not line.isspace():
                yield _parse_json(line, text_key, partial(bad, number))
    elif isinstance(whole := _decode(part.content, partial(bad, part.first_line)), str):
        yield whole
    else:
        # BytesIO ends lines at line feeds only, `bytes.splitlines` also at carriage returns.
        found = [
            _decode(line, partial(bad, number, remedy=convert_remedy(part.content)))
            for number, line in enumerate(BytesIO(part.content), part.first_line)
        ]
        yield from (line for line in found if isinstance(line, BadRecord))
        yield "".join(line for line in found if isinstance(line, str))


def _decode(content: bytes, bad: Callable[[str], BadRecord]) -> str | BadRecord:
    if b"\0" in content:
        return bad(f"not text: byte {content.index(0) + 1:,} of {len(content):,} is zero")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        byte, place = content[error.start], error.start + 1
        return bad(f"not UTF-8: byte 0x{byte:02x} at {place:,} of {len(content):,}")


def _split_remedy(line: str) -> str:
    """Returns how a list of records, or a record over several lines, becomes a record per line."""
    begun = line.strip()
    if not (begun == "{" or begun.startswith("[")):
        return JSON_LINES_WANTED
    items = "." if begun == "{" else "'.[]'"
    return f"{JSON_LINES_WANTED}: `jq -c {items} OLD.json > NEW.jsonl`"


def _parse_json(line: bytes, key: str, bad: Callable[..., BadRecord]) -> str | BadRecord:
    decoded = _decode(line, partial(bad, remedy=JSON_LINES_WANTED))
    if isinstance(decoded, BadRecord):
        return decoded
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        return bad(f"not JSON: {error}", _split_remedy(decoded))
    if not isinstance(record, dict):
        kind = type(record).__name__
        return bad(f"not a JSON object but a {kind}: {_shown(decoded)}", _split_remedy(decoded))
    text = record.get(key)
    if isinstance(text, str):
        try:
            if not text.isascii():
                text.encode()
            return text
        except UnicodeEncodeError as error:
            place = error.start + 1
            reason = f"{key} is not valid Unicode: lone surrogate at character {place:,}"
    elif key in record:
        reason = f"{key} is not a string but a {type(text).__name__}"
    else:
        names = [_shown(name) for name in list(record)[:KEYS_SHOWN]]
        names += ["..."] if len(record) > KEYS_SHOWN else []
        reason = f"no key {key}; the keys are: {', '.join(names) or 'none'}"
    others = {name: value for name, value in record.items() if name != key}
    texts = [name for name, value in others.items() if isinstance(value, str)]
    # A title or an identifier is shorter than the text that belongs to it.
    longest = max(texts, key=lambda name: len(others[name]), default=None)
    return bad(reason, None if longest is None else f"--text-key {shlex.quote(longest)}")


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True, slots=True)
class Encoded:
    """Result of encoding a chunk.

    Attributes:
        tokens: tokens of all its documents, concatenated, [tokens].
        lengths: length in tokens of each document that is not empty, int64 [documents]; for a piece
            of a text, the length of the piece.
        empty: number of documents without tokens.
        bad: records that were left out.
        failure: why the tokenizer cannot encode the chunk, or None.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    empty: int
    text_bytes: int
    bad: tuple[BadRecord, ...]
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How chunks are encoded.

    Attributes:
        kind: numpy's name of the type that tokens are stored in.
    """

    tokenizer: Path
    text_key: str
    eod: int | None
    kind: str

    def open(self) -> Callable[[Chunk], Encoded]:
        """Opens the tokenizer and returns a function that encodes a chunk.

        The function adds no end-of-document token to a piece of a text: `PartialBuild.add` does
        so after the last piece.
        """
        tokenizer = open_tokenizer(self.tokenizer)
        # Text that looks like a special token must not end a document.
        tokenizer.encode_special_tokens = True
        encode = encoder_of(tokenizer)

        def encode_chunk(chunk: Chunk) -> Encoded:
            texts, bad = parse_chunk(chunk, self.text_key)
            cut = [list(_cut(text)) for text in texts]
            documents: list[list[NDArray[Any]]] = []
            empty, failure = 0, None
            try:
                tokens = iter(encode([piece for pieces in cut for piece in pieces]))
                documents = [[next(tokens) for _ in pieces] for pieces in cut]
            except UsageError as error:
                failure = error.message
            if not chunk.is_piece:
                full = [parts for parts in documents if any(map(len, parts))]
                empty = len(documents) - len(full)
                end = [] if self.eod is None else [np.array([self.eod])]
                documents = [parts + end for parts in full]
            parts = [part for document in documents for part in document]
            return Encoded(
                np.concatenate([np.empty(0, self.kind), *parts], dtype=self.kind, casting="unsafe"),
                np.array([sum(map(len, document)) for document in documents], dtype=np.int64),
                empty,
                sum(map(_size, texts)),
                tuple(bad),
                failure,
            )

        return encode_chunk


def _cut(text: str) -> Iterator[str]:
    """Yields a text; a long one in pieces, cut at the places where a text file is cut."""
    if _size(text) < TEXT_PIECE_BYTES:
        yield text
    else:
        yield from (
            piece.decode() for piece, _ in cut_text(BytesIO(text.encode()), TEXT_PIECE_BYTES)
        )


def _size(text: str) -> int:
    # ASCII is marked in the string, so that most texts need no copy.
    return len(text) if text.isascii() else len(text.encode())
