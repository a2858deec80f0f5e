"""Makes the tokenizer of a build: reads a file, collects characters or trains byte-pair merges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.options import NO_EOD, BuildOptions
from rampcli.data.building.parsing import BadRecord, parse_chunk
from rampcli.data.building.partial import Watcher
from rampcli.data.building.records import Chunk, Reader
from rampcli.data.building.workers import environment
from rampcli.errors import UsageError
from rampcli.guarded_folder import read_file
from rampcli.processors import processors

TRAINING_BYTES = 256 << 20
"""Approximate size of the text that merges are learnt from."""
TRAINING_TEXT_CHARACTERS = 1 << 16
"""Longest piece of a text that is given to the trainer."""
SPECIAL_SHOWN = 6
WORTH_A_PROCESS_BYTES = 4 << 20
"""Bytes of inputs for each further process, if the number of processes is not given."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a build, read as text."""

    options: BuildOptions
    reader: Reader
    watcher: Watcher

    @property
    def workers(self) -> int:
        """Number of processes that encode."""
        worthwhile = 1 + self.reader.bytes // WORTH_A_PROCESS_BYTES
        return self.options.workers or min(processors(), worthwhile)

    def texts(self, phase: str, every: int = 1) -> Iterator[str]:
        """Yields the texts of every n-th chunk.

        Raises:
            UsageError: a record is bad, and bad records stop the build.
        """
        for number, chunk in enumerate(self._chunks(phase)):
            if number % every == 0:
                texts, bad = parse_chunk(chunk, self.options.text_key)
                self.check(bad)
                yield from texts

    def text_bytes(self) -> int:
        """Returns the size of all inputs after decompression; reads them if they are compressed."""
        inputs = self.reader.inputs
        if all(one.compression is None and one.kind != "parquet" for one in inputs):
            return self.reader.bytes
        return sum(one.bytes for chunk in self._chunks("measuring") for one in chunk.slices)

    def check(self, bad: Sequence[BadRecord]) -> None:
        """Raises a UsageError for the first bad record, if bad records stop the build."""
        if bad and self.options.on_bad_record == "stop":
            skip = "--on-bad-record skip, to leave such records out"
            remedies = [bad[0].remedy, skip] if bad[0].remedy else [skip]
            raise UsageError(self.describe(bad[0]), remedy=remedies)

    def describe(self, bad: BadRecord) -> str:
        """Returns the place of a bad record and what is wrong with it."""
        source = self.reader.inputs[bad.input]
        place = "row" if source.kind == "parquet" else "line"
        return f"{source.name}, {place} {bad.line:,}: {bad.reason}"

    def _chunks(self, phase: str) -> Iterator[Chunk]:
        self.watcher.on_phase(phase, self.reader.bytes)
        for chunk in self.reader.chunks():
            yield chunk
            self.watcher.on_progress(chunk.consumed_bytes, None)


def tokenizer_json(inputs: Inputs) -> str | bytes:
    """Returns the contents of `tokenizer.json` for a build; makes the tokenizer if necessary.

    Raises:
        UsageError: a file cannot be read, or a record is bad.
    """
    options = inputs.options
    if options.tokenizer_path is not None:
        return read_file(options.tokenizer_path, most_bytes=tokenizers.MOST_BYTES)
    if options.tokenizer == "bytes":
        tokenizer = tokenizers.byte_tokenizer()
    elif options.tokenizer == "chars":
        tokenizer = _characters_of(inputs)
    else:
        with environment({"TOKENIZERS_PARALLELISM": "true" if inputs.workers > 1 else "false"}):
            tokenizer = _train(inputs, vocab_size=options.train_bpe or 0)
    return tokenizer.to_str(pretty=True)


def _characters_of(inputs: Inputs) -> Tokenizer:
    seen = np.zeros(tokenizers.CODE_POINTS, dtype=bool)
    for text in inputs.texts("collecting characters"):
        seen[tokenizers.code_points(text)] = True
    if not seen.any():
        return tokenizers.byte_tokenizer()
    return tokenizers.character_tokenizer(map(chr, np.flatnonzero(seen)))


def _train(inputs: Inputs, *, vocab_size: int) -> Tokenizer:
    every = -(-inputs.text_bytes() // TRAINING_BYTES) or 1
    width = TRAINING_TEXT_CHARACTERS
    texts = (
        text[at : at + width]
        for text in inputs.texts("learning merges", every)
        for at in range(0, len(text), width)
    )
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
