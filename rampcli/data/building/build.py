"""Builds a corpus: encodes files of text into PREFIX.bin and PREFIX.idx.

The inputs are read once to encode them. If the tokenizer is learnt from them, they are read once
more before that. Files get their final names only when all of them are complete, PREFIX.idx last.
"""

import os
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from rampcli.checksums import sha256
from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.encoding import Encoding, encode_in_order
from rampcli.data.building.folder import BuildFolder
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.partial import (
    PartialBuild,
    Watcher,
    is_complete,
    move_into_place,
    writing,
)
from rampcli.data.building.records import Input, Reader, find_inputs
from rampcli.data.building.vocabulary import (
    SPECIAL_SHOWN,
    Inputs,
    end_of_document,
    tokenizer_json,
)
from rampcli.data.indexed import bin_of, idx_of, token_type, tokenizer_of, write_index
from rampcli.data.manifest import FORMAT, read_manifest
from rampcli.errors import UsageError
from rampcli.processors import processors

SAVE_EVERY_S = 2.0
SHOWN_SKIPPED = 5
TABLES = (".csv", ".tsv")
WORTH_A_PROCESS_BYTES = 4 << 20
"""Bytes of inputs for each further process, if the number of processes is not given."""


@dataclass(frozen=True, slots=True)
class Built:
    """A complete build.

    Attributes:
        seconds: duration of this call.
        encoded_bytes: bytes of text that this call encoded.
        was_complete: True if the corpus was complete before.
    """

    manifest: dict[str, Any]
    seconds: float
    encoded_bytes: int = 0
    was_complete: bool = False


def build(options: BuildOptions, watcher: Watcher | None = None) -> Built:
    """Builds a corpus, or resumes an unfinished build.

    Raises:
        UsageError: the options contradict each other, the inputs or the existing files; a record is
            bad; or there is nothing to encode.
        RampcliError: a file cannot be written, or a worker died; the same options then resume.
        KeyboardInterrupt: or another exception from a signal handler; progress is saved first.
    """
    began = time.monotonic()
    options = options.located()
    inputs = find_inputs(options.inputs, leave_out=[*options.products, options.partial])
    settings = _settings(options, inputs)
    folder = BuildFolder(options.partial)
    if manifest := _finished(options, settings):
        folder.remove_leftovers()
        return Built(manifest, time.monotonic() - began, was_complete=True)
    with writing(options.output.parent):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with folder.locked():
            if manifest := _finished(options, settings):  # by another process, meanwhile
                return Built(manifest, time.monotonic() - began, was_complete=True)
            work = _LockedBuild(options, inputs, settings, folder, watcher or Watcher())
            manifest = work.run()
    return Built(manifest, time.monotonic() - began, work.encoded_bytes)


def _settings(options: BuildOptions, inputs: list[Input]) -> dict[str, Any]:
    """Returns everything that determines the files of a build."""
    own = options.tokenizer_path
    if own is not None:
        tokenizers.open_tokenizer(own)  # raises if it is not a tokenizer
    return {
        "inputs": [one.identity() for one in inputs],
        "tokenizer": options.tokenizer_name,
        "tokenizer_sha256": None if own is None else sha256(own),
        "eod_option": options.eod,
        "text_key": options.text_key,
        "on_bad_record": options.on_bad_record,
    }


def _finished(options: BuildOptions, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if this build is already complete, or None if it can start.

    Raises:
        UsageError: a file of something else has one of the final names.
    """
    existing = [path for path in options.products if os.path.lexists(path)]
    if not existing or (
        idx_of(options.output) not in existing and is_complete(BuildFolder(options.partial))
    ):
        return None
    if idx_of(options.output) in existing and bin_of(options.output) in existing:
        manifest = read_manifest(options.output)
        if manifest is not None and all(
            manifest.get(key) == value for key, value in settings.items()
        ):
            return manifest
    raise UsageError(
        f"{existing[-1]} already exists, and is not from the same inputs and options",
        remedy="another --output, or delete it",
    )


class _LockedBuild:
    """A build that holds the lock of its folder."""

    def __init__(
        self,
        options: BuildOptions,
        inputs: list[Input],
        settings: dict[str, Any],
        folder: BuildFolder,
        watcher: Watcher,
    ) -> None:
        self.options = options
        self.settings = settings
        self.folder = folder
        self.partial = PartialBuild(folder)
        self.watcher = watcher
        self.reader = Reader(inputs, options.text_key)
        self.inputs = Inputs(options, self.reader, watcher)
        self.workers = options.workers or min(
            processors(), 1 + self.reader.bytes // WORTH_A_PROCESS_BYTES
        )
        self.encoded_bytes = 0

    def run(self) -> dict[str, Any]:
        """Builds, resuming if there is progress; returns the manifest."""
        if self.partial.begin(self.settings):
            self.watcher.on_note(f"resuming after {self.partial.written.documents:,} documents")
        else:
            made = tokenizer_json(self.inputs, workers=self.workers)
            self.folder.replace(self.folder.tokenizer, made)
        tokenizer = tokenizers.open_tokenizer(
            self.folder.tokenizer
            if self.folder.tokenizer.exists()
            else tokenizer_of(self.options.output)
        )
        eod = end_of_document(self.options.eod, tokenizer)
        self.partial.save()
        if not self.partial.written.is_complete:
            self._encode(tokenizer, eod)
            self._write_manifest(tokenizer, eod)
        return self._move_into_place()

    def _encode(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """Encodes the rest of the inputs; saves progress regularly, and on any error."""
        vocab_size = tokenizers.vocab_size_of(tokenizer)
        kind = token_type(vocab_size)
        self._note_choices(tokenizer, vocab_size, eod)
        self.watcher.on_phase("encoding", self.reader.bytes)
        encoding = Encoding(
            tokenizer=self.folder.tokenizer, text_key=self.options.text_key, eod=eod, kind=kind.str
        )
        before = self.partial.written.text_bytes
        with self.partial.opened(kind):
            try:
                self._add_all(encoding)
                self._check_unchanged()
                self.partial.save()
            except BaseException as error:
                with suppress(OSError):  # on a full disk, the last save remains
                    self.partial.save()
                if (
                    isinstance(error, UsageError)
                    and not self.partial.has_progress
                    and self.options.train_bpe is None
                ):
                    # The next start could not reuse anything.
                    self.folder.remove_file(self.folder.progress)
                raise
        self.encoded_bytes = self.partial.written.text_bytes - before
        if not self.partial.written.tokens:
            written = self.partial.written
            self.folder.remove_file(self.folder.progress)
            reason = f"{written.empty:,} empty documents, {written.skipped:,} bad records"
            raise UsageError(f"there is nothing to encode: {reason}", remedy="inputs with text")

    def _add_all(self, encoding: Encoding) -> None:
        names = [one.name for one in self.reader.inputs]
        shown, save_at = self.partial.written.skipped, time.monotonic() + SAVE_EVERY_S
        chunks = self.reader.chunks(self.partial.written.position)
        with closing(encode_in_order(chunks, encoding, self.workers)) as encoded_chunks:
            for chunk, encoded in encoded_chunks:
                self.inputs.check(encoded.bad)
                if encoded.failure is not None:
                    first = chunk.slices[0]
                    raise UsageError(
                        f"{names[first.input]}, line {first.first_line:,} or later:"
                        f" {encoded.failure}"
                    )
                self.partial.add(chunk, encoded, eod=encoding.eod, names=names)
                for bad in encoded.bad[: max(0, SHOWN_SKIPPED - shown)]:
                    self.watcher.on_note(f"skipped {self.inputs.describe(bad)}")
                shown += len(encoded.bad)
                self.watcher.on_progress(chunk.consumed_bytes, self.partial.written)
                if time.monotonic() >= save_at:
                    self.partial.save()
                    save_at = time.monotonic() + SAVE_EVERY_S

    def _check_unchanged(self) -> None:
        for one in self.reader.inputs:
            if one.has_changed():
                raise UsageError(
                    f"{one.name} changed while it was being read",
                    remedy=f"delete {self.folder.path} and start again",
                )

    def _note_choices(self, tokenizer: Tokenizer, vocab_size: int, eod: int | None) -> None:
        end = "none" if eod is None else f"{tokenizer.id_to_token(eod)} ({eod})"
        self.watcher.on_note(
            f"tokenizer {self.options.tokenizer_name} with {vocab_size:,} tokens; end-of-document"
            f" token: {end}"
        )
        for one in self.reader.inputs:
            if one.path.suffix in TABLES:
                self.watcher.on_note(
                    f"{one.name} is read as one text; a column of it needs JSON lines or Parquet"
                )
        if special := tokenizers.special_tokens_in_text(tokenizer)[:SPECIAL_SHOWN]:
            self.watcher.on_note(
                "warning: this tokenizer encodes ordinary text as a special token if it reads"
                f" {' or '.join(special)}"
            )

    def _write_manifest(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """Writes the index and the manifest, and marks the build as complete."""
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

    def _move_into_place(self) -> dict[str, Any]:
        """Moves the files to their final names, the index last: it makes the corpus complete."""
        folder = self.folder
        if not self.partial.written.skipped:
            folder.remove_file(folder.skipped)
        made = (folder.tokens, folder.tokenizer, folder.manifest, folder.skipped, folder.index)
        for path, name in zip(made, self.options.products, strict=True):
            if path != folder.skipped or self.partial.written.skipped:
                move_into_place(path, name)
        folder.remove_file(folder.progress)
        manifest = read_manifest(self.options.output)
        assert manifest is not None
        return manifest
