"""Options of `rampcli data build` and their checks, and its inputs."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rampcli.data import tokenizer as tokenizers
from rampcli.data.building.encoding import BadRecord
from rampcli.data.building.partial import Watcher
from rampcli.data.building.records import Reader
from rampcli.data.indexed import bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.data.special_tokens import TRAINED, find_tokenizer, name_meant
from rampcli.errors import UsageError
from rampcli.machine.host import processors

NO_EOD = "none"
MOST_WORKERS = max(64, 4 * processors())
LARGEST_BPE = 2_000_000
LONGEST_KEY = 1000
"""Most characters of --text-key and of --eod."""
WORTH_A_PROCESS_BYTES = 4 << 20
"""Bytes of inputs for each further process, if the number of processes is not given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """Options of a build.

    Attributes:
        output: PREFIX.
        tokenizer: "bytes", "chars", a file, a folder or a model of the hub; None with `train_bpe`.
        tokenizer_path: the tokenizer's file, once `located` has found it.
        train_bpe: vocabulary size of a tokenizer to train; None with `tokenizer`.
        eod: end-of-document token, or "none"; None for the tokenizer's own.
        text_key: key or column of the text in JSON and Parquet.
        workers: number of processes; None for at most one per processor, fewer for small inputs.
        on_bad_record: "stop" or "skip".
    """

    inputs: tuple[Path, ...]
    output: Path
    tokenizer: str | None = None
    tokenizer_path: Path | None = None
    train_bpe: int | None = None
    eod: str | None = None
    text_key: str = "text"
    workers: int | None = None
    on_bad_record: str = "stop"

    def located(self) -> "BuildOptions":
        """Returns the options with the tokenizer's file, downloading it if necessary.

        The tokenizer of a model of the hub is then named with its commit.

        Raises:
            UsageError: an option is out of range, or two options exclude each other.
            RampcliError: there is no such tokenizer.
        """
        for fault in self._faults():
            raise fault
        if self.tokenizer in (None, "bytes", "chars") or self.tokenizer_path is not None:
            return self
        name, path = find_tokenizer(str(self.tokenizer))
        return replace(self, tokenizer=name, tokenizer_path=path)

    def _faults(self) -> Iterator[UsageError]:
        if (self.tokenizer is None) == (self.train_bpe is None):
            yield UsageError(
                "one of --tokenizer and --train-bpe is needed"
                if self.tokenizer is None
                else "--tokenizer and --train-bpe exclude each other",
                remedy="--tokenizer bytes, or --train-bpe 8192",
            )
        if (meant := name_meant(self.tokenizer or "")) is not None:
            yield UsageError(
                f"--tokenizer {self.tokenizer} is not a tokenizer",
                remedy="--train-bpe 8192" if meant == TRAINED else f"--tokenizer {meant}",
            )
        if self.train_bpe is not None and self.train_bpe < tokenizers.SMALLEST_BPE:
            yield UsageError(
                f"--train-bpe {self.train_bpe} is below {tokenizers.SMALLEST_BPE}: 256 bytes and"
                " the end-of-document token",
                remedy=f"--train-bpe {tokenizers.SMALLEST_BPE} or more",
            )
        if self.train_bpe is not None and self.train_bpe > LARGEST_BPE:
            yield UsageError(
                f"--train-bpe {self.train_bpe} is above {LARGEST_BPE:,}",
                remedy="--train-bpe 32000",
            )
        ends = (None, NO_EOD, tokenizers.END_OF_TEXT)
        if self.train_bpe is not None and self.eod not in ends:
            yield UsageError(
                "the only end-of-document token of --train-bpe is"
                f" {tokenizers.END_OF_TEXT}, not --eod {self.eod}",
                remedy="--train-bpe without --eod",
            )
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            yield UsageError(
                f"--workers {self.workers} is not from 1 to 64, or to 4 per processor if that is"
                " more",
                remedy="without --workers, at most one process per processor",
            )
        for option, name in (("--text-key", self.text_key), ("--eod", self.eod or "")):
            if len(name) > LONGEST_KEY:
                yield UsageError(
                    f"{option} has {len(name):,} characters; at most {LONGEST_KEY:,} are allowed",
                    remedy="a shorter name",
                )
        if self.output.suffix in (".bin", ".idx"):
            yield UsageError(
                f"--output {self.output} is not a prefix: .bin and .idx are appended to it",
                remedy=f"--output {self.output.with_suffix('')}",
            )
        if not self.output.name or os.path.isdir(self.output):
            yield UsageError(
                f"--output {self.output} is a folder", remedy=f"--output {self.output / 'corpus'}"
            )

    @property
    def partial(self) -> Path:
        """The folder of an unfinished build."""
        return self.output.with_name(f"{self.output.name}.building")

    @property
    def skipped(self) -> Path:
        """The list of bad records."""
        return self.output.with_name(f"{self.output.name}.skipped.jsonl")

    @property
    def products(self) -> tuple[Path, ...]:
        """All files that a build may write, in the order in which they get their names."""
        return (
            bin_of(self.output),
            tokenizer_of(self.output),
            manifest_of(self.output),
            self.skipped,
            idx_of(self.output),
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a build, read as text."""

    options: BuildOptions
    reader: Reader
    watcher: Watcher

    @property
    def workers(self) -> int:
        """Number of processes that encode, or collect characters."""
        worthwhile = 1 + self.reader.bytes // WORTH_A_PROCESS_BYTES
        return self.options.workers or min(processors(), worthwhile)

    @property
    def are_packed(self) -> bool:
        """True if some inputs have another size after decompression."""
        inputs = self.reader.inputs
        return any(one.compression is not None or one.kind == "parquet" for one in inputs)

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
