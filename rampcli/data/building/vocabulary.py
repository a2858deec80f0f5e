"""Makes the tokenizer of a build: reads a file, collects characters or trains byte-pair merges.

A pass over the inputs collects their characters, measures them, or samples text for merges. It
notes its progress, from which it resumes.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.encoding import BadRecord, parse_chunk
from rampcli.data.building.options import NO_EOD, Inputs
from rampcli.data.building.partial import (
    BuildFolder,
    Counts,
    Saved,
    cannot_resume,
    read_counts,
)
from rampcli.data.building.records import Chunk, Cursor
from rampcli.data.building.streams import TEXT_PIECE_BYTES
from rampcli.data.building.workers import environment, map_in_order
from rampcli.data.tokenizer import CODE_POINTS, code_points
from rampcli.errors import DamagedFileError, UsageError
from rampcli.files.guarded_folder import read_content
from rampcli.files.records import is_unicode, parse_json

TRAINING_TEXT_CHARACTERS = 1 << 16
"""Longest piece of a text that is given to the trainer."""
TRAINING_BYTES = 256 << 20
"""Approximate size of the text that merges are learnt from."""
SPECIAL_SHOWN = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered(Counts):
    """Progress of a pass that gathers what the tokenizer is made from, as in gathered.json.

    Attributes:
        phase: what the pass does; empty before the first.
        chunks: number of chunks before that position.
        content_bytes: size of the inputs after decompression, as far as they are measured.
        sample_bytes: size of sample.jsonl.
        characters: the different characters of the texts, in the order of code points.
    """

    phase: str = ""
    chunks: int = 0
    content_bytes: int = 0
    sample_bytes: int = 0
    characters: str = ""


@dataclass(frozen=True, slots=True)
class _Characters:
    """Work on chunks: returns the different characters of their texts, and the bad records."""

    text_key: str

    def open(self) -> Callable[[Chunk], tuple[NDArray[np.uint32], list[BadRecord]]]:
        def characters_of(chunk: Chunk) -> tuple[NDArray[np.uint32], list[BadRecord]]:
            texts, bad = parse_chunk(chunk, self.text_key)
            seen = np.zeros(CODE_POINTS, dtype=bool)
            for text in texts:
                seen[code_points(text)] = True
            return np.flatnonzero(seen).astype(np.uint32), bad

        return characters_of


class Gathering(Saved[Gathered]):
    """Gathers what a tokenizer is made from.

    Raises:
        UsageError: gathered.json is damaged.
    """

    def __init__(self, folder: BuildFolder, inputs: Inputs) -> None:
        super().__init__(folder, folder.gathered, Gathered())
        self._inputs = inputs
        try:
            found = read_counts(self.path, Gathered, inputs=len(inputs.reader.inputs))
            if found is not None and not is_unicode(found.characters):
                raise DamagedFileError(f"{self.path} is damaged: characters are not valid Unicode")
        except DamagedFileError as error:
            raise cannot_resume(folder, error.message) from error
        self.counts = found or self.counts

    def characters(self) -> str:
        """Returns the different characters of all texts, in the order of code points.

        Raises:
            UsageError: a file cannot be read, or a record is bad and bad records stop the build.
        """
        inputs, work = self._inputs, _Characters(self._inputs.options.text_key)
        with self._pass("collecting characters"):
            seen = np.zeros(CODE_POINTS, dtype=bool)
            seen[code_points(self.counts.characters)] = True
            with closing(map_in_order(self._chunks(), work, inputs.workers)) as found:
                for chunk, (characters, bad) in found:
                    inputs.check(bad)
                    seen[characters] = True
                    self._advance(chunk, characters="".join(map(chr, np.flatnonzero(seen))))
        return self.counts.characters

    def sampled(self, most_bytes: int) -> Iterator[str]:
        """Returns pieces of texts of every n-th chunk, of about `most_bytes` in all.

        Raises:
            UsageError: a file cannot be read, or a record is bad and bad records stop the build.
        """
        every = -(-self._content_bytes() // most_bytes) or 1
        inputs, width = self._inputs, TRAINING_TEXT_CHARACTERS
        path = self.folder.sample
        with self.appending({path: self.counts.sample_bytes}), self._pass("sampling text"):
            sample = self.files[path]
            for chunk in self._chunks():
                if self.counts.chunks % every == 0:
                    texts, bad = parse_chunk(chunk, inputs.options.text_key)
                    inputs.check(bad)
                    for text in texts:
                        for at in range(0, len(text), width):
                            piece = json.dumps(text[at : at + width], ensure_ascii=False)
                            sample.write(piece.encode() + b"\n")
                self._advance(chunk, sample_bytes=sample.tell())
        return self._read_sample()

    def _content_bytes(self) -> int:
        """Returns the size of all inputs after decompression; reads them if they are compressed."""
        if not self._inputs.are_packed:
            return self._inputs.reader.bytes
        if self.counts.phase in ("", "measuring"):
            with self._pass("measuring"):
                for chunk in self._chunks():
                    size = sum(one.bytes for one in chunk.slices)
                    self._advance(chunk, content_bytes=self.counts.content_bytes + size)
        return self.counts.content_bytes

    def _chunks(self) -> Iterator[Chunk]:
        return self._inputs.reader.chunks(self.counts.position)

    @contextmanager
    def _pass(self, phase: str) -> Iterator[None]:
        """Begins or resumes a pass over the inputs, and saves its progress."""
        before, watcher = self.counts, self._inputs.watcher
        total_bytes = self._inputs.reader.bytes
        if before.phase != phase:
            self.counts = replace(
                before, phase=phase, position=Cursor(), consumed_bytes=0, chunks=0
            )
        elif before.position != Cursor():
            read, size = before.consumed_bytes / 1e6, total_bytes / 1e6
            watcher.on_note(f"resuming: {phase}, {read:,.1f} of {size:,.1f} MB read")
        watcher.on_phase(phase, total_bytes)
        with self.saving():
            yield

    def _advance(self, chunk: Chunk, **changes: Any) -> None:
        counted = {"position": chunk.end, "consumed_bytes": chunk.consumed_bytes, **changes}
        self.advance(replace(self.counts, chunks=self.counts.chunks + 1, **counted))
        self._inputs.watcher.on_progress(chunk.consumed_bytes, None)

    def _read_sample(self) -> Iterator[str]:
        watcher = self._inputs.watcher
        with os.fdopen(self.folder.open(self.folder.sample, os.O_RDONLY), "rb") as file:
            watcher.on_phase("learning merges", self.counts.sample_bytes)
            while lines := file.readlines(TEXT_PIECE_BYTES):
                yield from map(self._text_in, lines)
                watcher.on_progress(file.tell(), None)

    def _text_in(self, line: bytes) -> str:
        path = self.folder.sample
        try:
            text: str = parse_json(line, str, where=str(path))
        except DamagedFileError as error:
            raise cannot_resume(self.folder, error.message) from error
        if not is_unicode(text):
            raise cannot_resume(self.folder, f"{path} is damaged: a text is not valid Unicode")
        return text


def tokenizer_json(inputs: Inputs, folder: BuildFolder) -> str | bytes:
    """Returns the contents of `tokenizer.json` for a build; makes the tokenizer if necessary.

    Args:
        folder: keeps what has been gathered from the inputs, so that an interrupted call resumes.

    Raises:
        UsageError: a file cannot be read, or a record is bad.
    """
    options = inputs.options
    if options.tokenizer_path is not None:
        return read_content(options.tokenizer_path, most_bytes=tokenizers.MOST_TOKENIZER_BYTES)
    if options.tokenizer == "bytes":
        tokenizer = tokenizers.byte_tokenizer()
    elif options.tokenizer == "chars":
        characters = Gathering(folder, inputs).characters()
        tokenizer = (
            tokenizers.character_tokenizer(characters)
            if characters
            else tokenizers.byte_tokenizer()
        )
    else:
        with environment({"TOKENIZERS_PARALLELISM": "true" if inputs.workers > 1 else "false"}):
            tokenizer = _train(inputs, folder, vocab_size=options.train_bpe or 0)
    return tokenizer.to_str(pretty=True)


def _train(inputs: Inputs, folder: BuildFolder, *, vocab_size: int) -> Tokenizer:
    texts = Gathering(folder, inputs).sampled(TRAINING_BYTES)
    tokenizer = tokenizers.train_bpe(texts, vocab_size)
    if (found := tokenizers.vocab_size_of(tokenizer)) < vocab_size:
        inputs.watcher.on_note(
            f"the corpus is too small for --train-bpe {vocab_size}: the tokenizer has {found:,}"
            " tokens"
        )
    return tokenizer


def end_of_document(wanted: str | None, tokenizer: Tokenizer) -> int | None:
    """Returns the end-of-document token, or None if documents end without one.

    Args:
        wanted: the token's name, "none", or None for the tokenizer's own.

    Raises:
        UsageError: the tokenizer has no such token.
    """
    if wanted == NO_EOD:
        return None
    token = tokenizers.usual_end_of_document(tokenizer) if wanted is None else wanted
    if token is None:
        return None
    number = tokenizer.token_to_id(token)
    if number is None:
        special = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
        raise UsageError(
            f"--eod {token} is not a token of the tokenizer",
            remedy=f"--eod with one of {', '.join([*special[:SPECIAL_SHOWN], NO_EOD])}",
        )
    return int(number)
