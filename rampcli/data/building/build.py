"""Builds a corpus: encodes files of text into PREFIX.bin and PREFIX.idx.

The inputs are read once to encode them. Before that, they are read once for the tokenizer of
`--tokenizer chars` or `--train-bpe`, and once more to measure compressed inputs of `--train-bpe`.
Files get their final names only when all of them are complete, PREFIX.idx last.
"""

import os
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from rampcli.batch.quantities import listed
from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.encoding import Encoding
from rampcli.data.building.options import BuildOptions, Inputs
from rampcli.data.building.partial import (
    BuildFolder,
    PartialBuild,
    Watcher,
    is_complete,
    move_into_place,
    writing,
)
from rampcli.data.building.records import Cursor, Input, Reader, count_endings, find_inputs
from rampcli.data.building.vocabulary import SPECIAL_SHOWN, end_of_document, tokenizer_json
from rampcli.data.building.workers import map_in_order
from rampcli.data.indexed import (
    MANIFEST_FORMAT,
    bin_of,
    idx_of,
    read_manifest,
    token_type,
    tokenizer_of,
    write_index,
)
from rampcli.errors import UsageError
from rampcli.files.checksums import sha256

SHOWN_SKIPPED = 5
TABLES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Built:
    """A complete build.

    Attributes:
        encoded_bytes: bytes of text that this call encoded.
        was_complete: True if the corpus was complete before.
    """

    manifest: dict[str, Any]
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
    options, watcher = options.located(), watcher or Watcher()
    own = [*options.products, options.partial]
    files, others = find_inputs(options.inputs, leave_out=own)
    if others:
        watcher.on_note(
            f"note: files of other kinds are left out ({count_endings(others)}); a file that is"
            " named itself is read as text"
        )
    settings = _settings(options, files)
    folder = BuildFolder(options.partial)
    if manifest := _finished(options, settings):
        folder.remove_leftovers()
        return Built(manifest, was_complete=True)
    with writing(options.output.parent):
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with folder.locked():
            if manifest := _finished(options, settings):  # by another process, meanwhile
                return Built(manifest, was_complete=True)
            reader = Reader(files, options.text_key)
            inputs = Inputs(options, reader, watcher)
            return _LockedBuild(inputs, settings, PartialBuild(folder)).run()


def _settings(options: BuildOptions, inputs: list[Input]) -> dict[str, Any]:
    """Returns everything that determines the files of a build."""
    file = options.tokenizer_path
    if file is not None:
        tokenizers.open_tokenizer(file)  # raises if it is not a tokenizer
    return {
        "inputs": [one.identity() for one in inputs],
        "tokenizer": options.tokenizer or f"bpe {options.train_bpe}",
        "tokenizer_sha256": None if file is None else sha256(file),
        "eod_option": options.eod,
        "text_key": options.text_key,
        "on_bad_record": options.on_bad_record,
    }


def _finished(options: BuildOptions, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest if this build is already complete, or None if it can start.

    Refuses to start if a file of something else has one of the final names.
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
    names, is_one = listed([path.name for path in existing]), len(existing) == 1
    exist = f"already exist{'s' if is_one else ''} in {options.output.parent}"
    raise UsageError(
        f"{names} {exist}, built from other inputs or options",
        remedy=("another --output", f"delete {'it' if is_one else 'them'}"),
    )


@dataclass(frozen=True, slots=True)
class _LockedBuild:
    """A build that holds the lock of its folder."""

    inputs: Inputs
    settings: dict[str, Any]
    partial: PartialBuild

    def run(self) -> Built:
        """Builds, resuming if there is progress."""
        folder, options = self.partial.folder, self.inputs.options
        if self.partial.begin(self.settings, self.inputs.watcher):
            documents = self.partial.counts.documents
            self.inputs.watcher.on_note(f"resuming after {documents:,} documents")
        else:
            folder.replace(folder.tokenizer, tokenizer_json(self.inputs, folder))
        has_moved = not folder.tokenizer.exists()
        tokenizer = tokenizers.open_tokenizer(
            tokenizer_of(options.output) if has_moved else folder.tokenizer
        )
        eod = end_of_document(options.eod, tokenizer)
        self.partial.save()
        self.partial.remove_gathered()
        before = self.partial.counts.text_bytes
        if not self.partial.counts.is_complete:
            self._encode(tokenizer, eod)
            self._write_manifest(tokenizer, eod)
        return Built(self._move_into_place(), self.partial.counts.text_bytes - before)

    def _encode(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """Encodes the rest of the inputs; saves progress regularly, and on any error."""
        folder, options = self.partial.folder, self.inputs.options
        kind = token_type(tokenizers.vocab_size_of(tokenizer))
        self._note_choices(tokenizer, eod)
        self.inputs.watcher.on_phase("encoding", self.inputs.reader.bytes)
        encoding = Encoding(
            tokenizer=folder.tokenizer, text_key=options.text_key, eod=eod, kind=kind.str
        )
        with self.partial.opened(kind):
            try:
                with self.partial.saving():
                    self._add_all(encoding)
                    self._check_unchanged()
            except UsageError:
                if self.partial.counts.position == Cursor() and options.train_bpe is None:
                    # The next start could not reuse anything.
                    folder.remove_file(folder.progress)
                raise
        written = self.partial.counts
        if not written.tokens:
            folder.remove_file(folder.progress)
            reason = f"{written.empty:,} empty documents, {written.skipped:,} bad records"
            raise UsageError(f"the inputs contain no text: {reason}", remedy="inputs with text")

    def _add_all(self, encoding: Encoding) -> None:
        inputs, partial = self.inputs, self.partial
        names = [one.name for one in inputs.reader.inputs]
        chunks = inputs.reader.chunks(partial.counts.position)
        with closing(map_in_order(chunks, encoding, inputs.workers)) as encoded_chunks:
            for chunk, encoded in encoded_chunks:
                inputs.check(encoded.bad)
                if encoded.failure is not None:
                    first = chunk.slices[0]
                    raise UsageError(
                        f"{names[first.input]}, line {first.first_line:,} or later:"
                        f" {encoded.failure}"
                    )
                shown = partial.counts.skipped
                partial.add(chunk, encoded, eod=encoding.eod, names=names)
                for bad in encoded.bad[: max(0, SHOWN_SKIPPED - shown)]:
                    inputs.watcher.on_note(f"skipped {inputs.describe(bad)}")
                inputs.watcher.on_progress(chunk.consumed_bytes, partial.counts)

    def _check_unchanged(self) -> None:
        for one in self.inputs.reader.inputs:
            if one.has_changed():
                raise UsageError(
                    f"{one.name} changed while it was being read",
                    remedy=f"delete {self.partial.folder.path} and start again",
                )

    def _note_choices(self, tokenizer: Tokenizer, eod: int | None) -> None:
        note, vocab_size = self.inputs.watcher.on_note, tokenizers.vocab_size_of(tokenizer)
        end = "none" if eod is None else f"{tokenizer.id_to_token(eod)} ({eod})"
        note(
            f"tokenizer {self.settings['tokenizer']} with {vocab_size:,} tokens;"
            f" end-of-document token: {end}"
        )
        for one in self.inputs.reader.inputs:
            if one.path.suffix in TABLES:
                note(
                    f"{one.name} is read as one text; to read one column, convert the table to JSON"
                    " lines or Parquet"
                )
        if special := tokenizers.special_tokens_in_text(tokenizer)[:SPECIAL_SHOWN]:
            note(
                f"warning: text that spells {' or '.join(special)} becomes a special token in this"
                " tokenizer"
            )

    def _write_manifest(self, tokenizer: Tokenizer, eod: int | None) -> None:
        """Writes the index and the manifest, and marks the build as complete."""
        folder, written = self.partial.folder, self.partial.counts
        vocab_size = tokenizers.vocab_size_of(tokenizer)
        write_index(folder.index, token_type(vocab_size), self.partial.blocks_of_lengths)
        files = {
            "bin": (folder.tokens, self.partial.tokens_digest.hexdigest()),
            "idx": (folder.index, sha256(folder.index)),
            "tokenizer": (folder.tokenizer, sha256(folder.tokenizer)),
        }
        manifest = {
            "format": MANIFEST_FORMAT,
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
                name: {"bytes": path.stat().st_size, "sha256": checksum}
                for name, (path, checksum) in files.items()
            },
        }
        folder.write_json(folder.manifest, manifest)
        self.partial.counts = replace(written, is_complete=True)
        self.partial.save()

    def _move_into_place(self) -> dict[str, Any]:
        """Moves the files to their final names, the index last: it makes the corpus complete."""
        folder, options = self.partial.folder, self.inputs.options
        if not self.partial.counts.skipped:
            folder.remove_file(folder.skipped)
        made = (folder.tokens, folder.tokenizer, folder.manifest, folder.skipped, folder.index)
        for path, name in zip(made, options.products, strict=True):
            if path != folder.skipped or self.partial.counts.skipped:
                move_into_place(path, name)
        folder.remove_file(folder.progress)
        manifest = read_manifest(options.output)
        assert manifest is not None
        return manifest
