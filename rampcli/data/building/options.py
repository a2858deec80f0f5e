"""Options of `rampcli data build`, and their checks."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from rampcli.data import tokenizer as tokenizers
from rampcli.data.indexed import bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.data.tokenizer_path import TRAINED, find_tokenizer, name_meant
from rampcli.errors import UsageError
from rampcli.machine.processors import processors

NO_EOD = "none"
MOST_WORKERS = max(64, 4 * processors())
LARGEST_BPE = 2_000_000
LONGEST_NAME = 1000
"""Most characters of --text-key and of --eod."""


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
        self._check_tokenizer()
        self._check_limits()
        self._check_output()
        if self.tokenizer in (None, "bytes", "chars") or self.tokenizer_path is not None:
            return self
        name, path = find_tokenizer(str(self.tokenizer))
        return replace(self, tokenizer=name, tokenizer_path=path)

    def _check_tokenizer(self) -> None:
        if (self.tokenizer is None) == (self.train_bpe is None):
            raise UsageError(
                "one of --tokenizer and --train-bpe is needed"
                if self.tokenizer is None
                else "--tokenizer and --train-bpe exclude each other",
                remedy="--tokenizer bytes, or --train-bpe 8192",
            )
        if (meant := name_meant(self.tokenizer or "")) is not None:
            raise UsageError(
                f"--tokenizer {self.tokenizer} is not a tokenizer",
                remedy="--train-bpe 8192" if meant == TRAINED else f"--tokenizer {meant}",
            )
        if self.train_bpe is None:
            return
        if self.train_bpe < tokenizers.SMALLEST_BPE:
            raise UsageError(
                f"--train-bpe {self.train_bpe} is below {tokenizers.SMALLEST_BPE}: 256 bytes and"
                " the end-of-document token",
                remedy=f"--train-bpe {tokenizers.SMALLEST_BPE} or more",
            )
        if self.train_bpe > LARGEST_BPE:
            raise UsageError(
                f"--train-bpe {self.train_bpe} is above {LARGEST_BPE:,}",
                remedy="--train-bpe 32000",
            )
        if self.eod not in (None, NO_EOD, tokenizers.END_OF_TEXT):
            raise UsageError(
                "the only end-of-document token of --train-bpe is"
                f" {tokenizers.END_OF_TEXT}, not --eod {self.eod}",
                remedy="--train-bpe without --eod",
            )

    def _check_limits(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(
                f"--workers {self.workers} is not from 1 to 64, or to 4 per processor if that is"
                " more",
                remedy="without --workers, at most one process per processor",
            )
        for option, name in (("--text-key", self.text_key), ("--eod", self.eod or "")):
            if len(name) > LONGEST_NAME:
                raise UsageError(
                    f"{option} has {len(name):,} characters; at most {LONGEST_NAME:,} are allowed",
                    remedy="a shorter name",
                )

    def _check_output(self) -> None:
        if self.output.suffix in (".bin", ".idx"):
            raise UsageError(
                f"--output {self.output} is not a prefix: .bin and .idx are appended to it",
                remedy=f"--output {self.output.with_suffix('')}",
            )
        if not self.output.name or os.path.isdir(self.output):
            raise UsageError(
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
