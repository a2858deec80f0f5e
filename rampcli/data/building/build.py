"""Building a corpus: files of text to PREFIX.bin and PREFIX.idx, with their tokenizer and a manifest.

The inputs are read once to encode them, and before it once for the alphabet or for the merges where these come from the corpus. Nothing
stands under its final name before all is done, and PREFIX.idx is the last to get its name.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from rampcli.checksums import sha256
from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.encoding import Encoding, encode_in_order, environment
from rampcli.data.building.folder import BuildFolder
from rampcli.data.building.parsing import BadRecord, texts_of
from rampcli.data.building.partial import PartialBuild, Written, take_name, writing
from rampcli.data.building.records import Chunk, Input, Kind, Reader, find_inputs
from rampcli.data.indexed import bin_of, idx_of, manifest_of, token_type, tokenizer_of, write_index
from rampcli.data.manifest import FORMAT, read_manifest
from rampcli.errors import UsageError
from rampcli.own_folder import read_file
from rampcli.processors import processors

SAVE_EVERY_S = 2.0
TRAINING_BYTES = 256 << 20
"""As much text merges are learnt from."""
TRAINING_TEXT_CHARACTERS = 1 << 16
NO_EOD = "none"
POLICIES = ("stop", "skip")
SHOWN_SKIPPED = 5
WORTH_A_PROCESS_BYTES = 4 << 20
SPECIAL_SHOWN = 6
MOST_WORKERS = max(64, 4 * processors())
LARGEST_BPE = 2_000_000
LONGEST_NAME = 1000
"""Characters of --text-key and --eod."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What to build.

    Attributes:
        inputs: files and folders.
        output: PREFIX.
        tokenizer: "bytes", "chars" or a file; None with `train_bpe`.
        train_bpe: the vocabulary of a tokenizer to train; None with `tokenizer`.
        eod: the token after each document, "none" for none; None for what is usual.
        text_key: of the text in JSON and Parquet.
        workers: processes; None for as many as there are processors.
        on_bad_record: "stop" or "skip".
    """

    inputs: tuple[Path, ...]
    output: Path
    tokenizer: str | None = None
    train_bpe: int | None = None
    eod: str | None = None
    text_key: str = "text"
    workers: int | None = None
    on_bad_record: str = "stop"

    def check(self) -> None:
        """Raises a `UsageError` where it does not fit itself."""
        if (self.tokenizer is None) == (self.train_bpe is None):
            both = "one of both is needed" if self.tokenizer is None else "only one of both can be"
            raise UsageError(
                f"--tokenizer and --train-bpe: {both}",
                remedy="--tokenizer bytes, or --train-bpe 8192",
            )
        if self.train_bpe is not None and self.train_bpe < tokenizers.SMALLEST_BPE:
            raise UsageError(
                f"--train-bpe {self.train_bpe}: 256 bytes and the end of a document are {tokenizers.SMALLEST_BPE} tokens",
                remedy=f"--train-bpe {tokenizers.SMALLEST_BPE} or more",
            )
        if self.train_bpe is not None and self.train_bpe > LARGEST_BPE:
            raise UsageError(
                f"--train-bpe {self.train_bpe}: at most {LARGEST_BPE:,} tokens",
                remedy="--train-bpe 32000",
            )
        if self.train_bpe is not None and self.eod not in (None, NO_EOD, tokenizers.END_OF_TEXT):
            raise UsageError(
                f"--eod {self.eod}: a tokenizer that is trained has {tokenizers.END_OF_TEXT}",
                remedy="--train-bpe without --eod",
            )
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(
                f"--workers {self.workers}: from 1 to 64 processes, or to 4 for each processor",
                remedy="without --workers, one process for each processor",
            )
        for option, name in (("--text-key", self.text_key), ("--eod", self.eod or "")):
            if len(name) > LONGEST_NAME:
                raise UsageError(
                    f"{option} has {len(name):,} characters, and at most {LONGEST_NAME:,} are read",
                    remedy="a shorter name",
                )
        if self.on_bad_record not in POLICIES:
            raise UsageError(
                f"--on-bad-record {self.on_bad_record}: there is stop and skip",
                remedy="--on-bad-record skip",
            )
        if self.output.suffix in (".bin", ".idx"):
            raise UsageError(
                f"--output {self.output} is a prefix, which gets .bin and .idx",
                remedy=f"--output {self.output.with_suffix('')}",
            )
        if not self.output.name or os.path.isdir(self.output):
            raise UsageError(
                f"--output {self.output} is a folder", remedy=f"--output {self.output / 'corpus'}"
            )

    @property
    def tokenizer_name(self) -> str:
        """As the manifest has it."""
        return f"bpe {self.train_bpe}" if self.tokenizer is None else self.tokenizer

    @property
    def partial(self) -> Path:
        """The folder of what is half done."""
        return self.output.with_name(f"{self.output.name}.building")

    @property
    def skipped(self) -> Path:
        """The list of bad records."""
        return self.output.with_name(f"{self.output.name}.skipped.jsonl")

    @property
    def products(self) -> tuple[Path, ...]:
        """All files that a build may write."""
        return (
            bin_of(self.output),
            tokenizer_of(self.output),
            manifest_of(self.output),
            self.skipped,
            idx_of(self.output),
        )


class Watcher:
    """Is told how a build goes. This one does not care."""

    def on_phase(self, name: str, total_bytes: int) -> None:
        """Reading begins, once more or for the only time."""

    def on_progress(self, consumed_bytes: int, written: Written | None) -> None:
        """So much of the inputs has been read; what is written, where something is."""

    def on_note(self, line: str) -> None:
        """Something was decided, or is worth knowing."""


@dataclass(frozen=True, slots=True)
class Built:
    """A complete build.

    Attributes:
        manifest: what PREFIX.json says.
        seconds: that this took.
        encoded_bytes: of text, this time.
        was_there: whether it was complete before.
    """

    manifest: dict[str, Any]
    seconds: float
    encoded_bytes: int = 0
    was_there: bool = False


def build(order: Order, watcher: Watcher | None = None) -> Built:
    """Build a corpus, or go on with one that is half done.

    Raises:
        UsageError: the order does not fit itself, the inputs or what is there already; a bad record; nothing to encode.
        RampcliError: it cannot be written, or a worker has died. The same order goes on then.
        KeyboardInterrupt: and whatever else a signal's handler raises; what was written is saved before.
    """
    began = time.monotonic()
    order.check()
    inputs = find_inputs(order.inputs, leave_out=[*order.products, order.partial])
    settings = _settings(order, inputs)
    folder = BuildFolder(order.partial)
    if done := _complete(order, settings):
        folder.remove_leftovers()
        return Built(done, time.monotonic() - began, was_there=True)
    with writing(order.output.parent):
        order.output.parent.mkdir(parents=True, exist_ok=True)
        with folder.locked():
            if done := _complete(order, settings):  # another one has ended in between
                return Built(done, time.monotonic() - began, was_there=True)
            work = _Work(order, inputs, settings, folder, watcher or Watcher())
            manifest = work.do()
    return Built(manifest, time.monotonic() - began, work.encoded_bytes)


def _settings(order: Order, inputs: list[Input]) -> dict[str, Any]:
    """What the files of a build follow from."""
    own = order.tokenizer not in (None, "bytes", "chars")
    if own:
        tokenizers.open_tokenizer(
            Path(str(order.tokenizer))
        )  # refuses a file that is not a tokenizer
    return {
        "inputs": [one.identity() for one in inputs],
        "tokenizer": order.tokenizer_name,
        "tokenizer_sha256": sha256(Path(str(order.tokenizer))) if own else None,
        "eod_option": order.eod,
        "text_key": order.text_key,
        "on_bad_record": order.on_bad_record,
    }


def _complete(order: Order, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of a complete build of the same; None where nothing is in the way.

    Raises:
        UsageError: something else has one of the names.
    """
    there = [path for path in order.products if os.path.lexists(path)]
    if not there or (
        idx_of(order.output) not in there and BuildFolder(order.partial).is_taking_names()
    ):
        return None
    if idx_of(order.output) in there and bin_of(order.output) in there:
        manifest = read_manifest(order.output)
        if manifest is not None and all(
            manifest.get(key) == value for key, value in settings.items()
        ):
            return manifest
    raise UsageError(
        f"{there[-1]} is there already, and not from the same inputs and options",
        remedy="another --output, or delete it",
    )


class _Work:
    """What is done under the lock."""

    def __init__(
        self,
        order: Order,
        inputs: list[Input],
        settings: dict[str, Any],
        folder: BuildFolder,
        watcher: Watcher,
    ) -> None:
        self.order = order
        self.inputs = inputs
        self.settings = settings
        self.folder = folder
        self.partial = PartialBuild(folder)
        self.watcher = watcher
        self.reader = Reader(inputs, order.text_key)
        self.workers = order.workers or min(
            processors(), 1 + self.reader.bytes // WORTH_A_PROCESS_BYTES
        )
        self.encoded_bytes = 0

    def do(self) -> dict[str, Any]:
        """Build from where it stands; gives the manifest."""
        if self.partial.begin(self.settings):
            self.watcher.on_note(f"going on after {self.partial.written.documents:,} documents")
        else:
            self._make_tokenizer()
        tokenizer = tokenizers.open_tokenizer(
            self.folder.tokenizer
            if self.folder.tokenizer.exists()
            else tokenizer_of(self.order.output)
        )
        eod = _end_of_document(self.order.eod, tokenizer)
        self.partial.save()
        if not self.partial.written.is_complete:
            self._encode(tokenizer, eod)
            self._write_manifest(tokenizer, eod)
        return self._take_names()

    def _make_tokenizer(self) -> None:
        if self.order.tokenizer not in (None, "bytes", "chars"):
            written: str | bytes = read_file(
                Path(str(self.order.tokenizer)), most_bytes=tokenizers.MOST_BYTES
            )
        else:
            written = self._made_tokenizer().to_str(pretty=True)
        self.folder.replace(self.folder.tokenizer, written)

    def _made_tokenizer(self) -> Tokenizer:
        if self.order.tokenizer == "bytes":
            return tokenizers.byte_tokenizer()
        if self.order.tokenizer == "chars":
            seen = np.zeros(tokenizers.CODE_POINTS, dtype=bool)
            for text in self._texts("collecting characters"):
                seen[tokenizers.code_points(text)] = True
            return (
                tokenizers.character_tokenizer(map(chr, np.flatnonzero(seen)))
                if seen.any()
                else tokenizers.byte_tokenizer()
            )
        size = self.order.train_bpe or 0
        every = -(-self._content_bytes() // TRAINING_BYTES) or 1
        width = TRAINING_TEXT_CHARACTERS
        texts = (
            text[at : at + width]
            for text in self._texts("learning merges", every)
            for at in range(0, len(text), width)
        )
        with environment({"TOKENIZERS_PARALLELISM": "true" if self.workers > 1 else "false"}):
            tokenizer = tokenizers.train_bpe(texts, size)
        if (found := tokenizers.vocab_size_of(tokenizer)) < size:
            self.watcher.on_note(
                f"the corpus is small: it gives {found:,} tokens, and --train-bpe {size} asks for more"
            )
        return tokenizer

    def _content_bytes(self) -> int:
        """Of all inputs, unpacked."""
        if all(one.compression is None and one.kind is not Kind.parquet for one in self.inputs):
            return self.reader.bytes
        return sum(one.bytes for chunk in self._chunks("measuring") for one in chunk.slices)

    def _texts(self, phase: str, every: int = 1) -> Iterator[str]:
        """The texts of every n-th chunk."""
        for number, chunk in enumerate(self._chunks(phase)):
            if number % every == 0:
                found = [
                    text for one in chunk.slices for text in texts_of(one, self.order.text_key)
                ]
                self._check([text for text in found if isinstance(text, BadRecord)])
                yield from (text.content for text in found if not isinstance(text, BadRecord))

    def _chunks(self, phase: str) -> Iterator[Chunk]:
        self.watcher.on_phase(phase, self.reader.bytes)
        for chunk in self.reader.chunks():
            yield chunk
            self.watcher.on_progress(chunk.consumed_bytes, None)

    def _check(self, bad: list[BadRecord] | tuple[BadRecord, ...]) -> None:
        if bad and self.order.on_bad_record == "stop":
            raise UsageError(
                self._named(bad[0]),
                remedy="--on-bad-record skip: it goes on, and leaves such records out",
            )

    def _named(self, bad: BadRecord) -> str:
        place = "row" if self.inputs[bad.input].kind is Kind.parquet else "line"
        return f"{self.inputs[bad.input].name}, {place} {bad.line:,}: {bad.reason}"

    def _encode(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """All that is still to be read, saved from time to time, and at the end whatever the end is."""
        vocab_size = tokenizers.vocab_size_of(tokenizer)
        kind = token_type(vocab_size)
        self._say_what_was_chosen(tokenizer, vocab_size, eod)
        self.watcher.on_phase("encoding", self.reader.bytes)
        encoding = Encoding(
            tokenizer=self.folder.tokenizer, text_key=self.order.text_key, eod=eod, kind=kind.str
        )
        before = self.partial.written.text_bytes
        with self.partial.opened(kind):
            try:
                self._add_all(encoding)
                self._check_unchanged()
                self.partial.save()
            except BaseException as error:
                with suppress(OSError):  # a full disk keeps what was saved before
                    self.partial.save()
                if (
                    isinstance(error, UsageError)
                    and not self.partial.has_text
                    and self.order.train_bpe is None
                ):
                    self.folder.remove_file(
                        self.folder.progress
                    )  # nothing was read that the next start could use
                raise
        self.encoded_bytes = self.partial.written.text_bytes - before
        if not self.partial.written.tokens:
            written = self.partial.written
            self.folder.remove_file(self.folder.progress)
            reason = f"{written.empty:,} empty documents, {written.skipped:,} bad records"
            raise UsageError(f"there is nothing to encode: {reason}", remedy="inputs with text")

    def _add_all(self, encoding: Encoding) -> None:
        names = [one.name for one in self.inputs]
        shown, save_at = self.partial.written.skipped, time.monotonic() + SAVE_EVERY_S
        chunks = self.reader.chunks(self.partial.written.position)
        with closing(encode_in_order(chunks, encoding, self.workers)) as encoded_chunks:
            for chunk, encoded in encoded_chunks:
                self._check(encoded.bad)
                if encoded.failure is not None:
                    first = chunk.slices[0]
                    raise UsageError(
                        f"{names[first.input]}, from line {first.first_line:,} on: {encoded.failure}"
                    )
                self.partial.add(chunk, encoded, eod=encoding.eod, names=names)
                for bad in encoded.bad[: max(0, SHOWN_SKIPPED - shown)]:
                    self.watcher.on_note(f"skipped {self._named(bad)}")
                shown += len(encoded.bad)
                self.watcher.on_progress(chunk.consumed_bytes, self.partial.written)
                if time.monotonic() >= save_at:
                    self.partial.save()
                    save_at = time.monotonic() + SAVE_EVERY_S

    def _check_unchanged(self) -> None:
        for one in self.inputs:
            if one.has_changed():
                raise UsageError(
                    f"{one.name} has changed while it was read",
                    remedy=f"delete {self.folder.path} and begin anew",
                )

    def _say_what_was_chosen(self, tokenizer: Tokenizer, vocab_size: int, eod: int | None) -> None:
        end = "nothing" if eod is None else f"{tokenizer.id_to_token(eod)} (token {eod})"
        self.watcher.on_note(
            f"tokenizer {self.order.tokenizer_name} with {vocab_size:,} tokens; at the end of a document: {end}"
        )
        if read := tokenizers.special_tokens_in_text(tokenizer)[:SPECIAL_SHOWN]:
            self.watcher.on_note(
                f"warning: this tokenizer makes special tokens of text that reads {' or '.join(read)}"
            )

    def _write_manifest(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """Write what is missing but the names."""
        vocab_size, written = tokenizers.vocab_size_of(tokenizer), self.partial.written
        write_index(self.folder.index, token_type(vocab_size), self.partial.blocks_of_lengths)
        files = {
            "bin": self.folder.tokens,
            "idx": self.folder.index,
            "tokenizer": self.folder.tokenizer,
        }
        manifest = {
            "format": FORMAT,
            "tokens": written.tokens,
            "documents": written.documents,
            "empty": written.empty,
            "skipped": written.skipped,
            "text_bytes": written.text_bytes,
            "largest_token": written.largest_token,
            "vocab_size": vocab_size,
            "eod": eod,
            "eod_token": None if eod is None else tokenizer.id_to_token(eod),
            **self.settings,
            "files": {
                name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for name, path in files.items()
            },
        }
        self.folder.write_json(self.folder.manifest, manifest)
        self.partial.save(is_complete=True)

    def _take_names(self) -> dict[str, Any]:
        """Give the files their names, the index last: with it the corpus is there."""
        folder = self.folder
        if not self.partial.written.skipped:
            folder.remove_file(folder.skipped)
        made = (folder.tokens, folder.tokenizer, folder.manifest, folder.skipped, folder.index)
        for path, name in zip(made, self.order.products, strict=True):
            if path != folder.skipped or self.partial.written.skipped:
                take_name(path, name)
        folder.remove_file(folder.progress)
        manifest = read_manifest(self.order.output)
        assert manifest is not None
        return manifest


def _end_of_document(wanted: str | None, tokenizer: Tokenizer) -> int | None:
    """The token after each document; None for none.

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
        special = [one.content for one in tokenizer.get_added_tokens_decoder().values()][
            :SPECIAL_SHOWN
        ]
        raise UsageError(
            f"--eod {token}: the tokenizer has no such token",
            remedy=f"--eod with one of {', '.join([*special, NO_EOD])}",
        )
    return int(number)
