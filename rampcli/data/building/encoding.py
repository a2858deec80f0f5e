"""Encodes chunks to tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.building.parsing import BadRecord, parse_chunk
from rampcli.data.building.records import Chunk
from rampcli.data.building.streams import PIECE_BYTES, pieces_of
from rampcli.data.tokenizer import encoder_of, open_tokenizer
from rampcli.errors import UsageError


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
    if _size(text) < PIECE_BYTES:
        yield text
    else:
        yield from (piece.decode() for piece, _ in pieces_of(BytesIO(text.encode()), PIECE_BYTES))


def _size(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    # ASCII is marked in the string, so that most texts need no copy.
    return len(text) if text.isascii() else len(text.encode())
