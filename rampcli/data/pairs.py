"""Pairs of prompts and responses, packed whole into windows. Only responses are labels."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rampcli.data.chat_template import read_chat_template
from rampcli.data.corpus import Corpus, Samples
from rampcli.data.encoded_pairs import Pairs, check_template, encode_pairs, pair_too_long
from rampcli.data.examples import TASK_CHARACTERS, Examples, open_examples, open_named_examples
from rampcli.data.files import check_vocabulary, cut_of, open_named_tokenizer
from rampcli.data.order import Blend, Corpora
from rampcli.data.pair_format import NEW_LINE, PairFormat
from rampcli.data.tokenizer import vocab_size_of
from rampcli.errors import UsageError, naming_setting
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig

FINGERPRINTED = 8
"""Examples of a task whose tokens are part of its fingerprint."""


class PackedPairs:
    """The pairs of a file, in its order. Each window has as many of them as fit.

    Attributes:
        firsts: the first pair of each window, and the number of pairs, [windows + 1].
        fingerprint: hash of the pairs and of the sequence length.
    """

    def __init__(self, examples: Examples, pair_format: PairFormat, *, length: int) -> None:
        """Encodes and packs all examples.

        Args:
            length: tokens in a window.

        Raises:
            UsageError: an example cannot be encoded, or has more than `length` tokens.
        """
        self.name, self.sequence_length = examples.name, length
        everything = range(len(examples))
        check_template(examples, pair_format, everything, length=length)
        self.pairs = encode_pairs(examples, pair_format, everything, length=length)
        starts, firsts = self.pairs.starts.tolist(), [0]
        while firsts[-1] < len(examples):
            firsts.append(bisect_right(starts, starts[firsts[-1]] + length) - 1)
        self.firsts = np.array(firsts, dtype=np.int64)
        self.fingerprint = self.pairs.hashed_after(f"pairs {length}")

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.firsts) - 1

    @property
    def number_of_pairs(self) -> int:
        """Number of pairs in all windows."""
        return len(self.pairs.prompts)

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """Reads windows by their indices, [samples]."""
        ranges = zip(self.firsts[windows].tolist(), self.firsts[windows + 1].tolist(), strict=True)
        return self.pairs.read(list(ranges), self.sequence_length)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPairs:
    """The pairs of a task, without end. Each window has the same number of them."""

    examples: Examples
    format: PairFormat
    sequence_length: int
    pairs_per_window: int

    @classmethod
    def of(cls, examples: Examples, pair_format: PairFormat, *, length: int) -> "TaskPairs":
        """Returns windows that hold as many pairs as fit, counting a token for each character.

        Raises:
            UsageError: a window has no room for a pair.
        """
        check_template(examples, pair_format, range(FINGERPRINTED), length=length)
        encoded = (*pair_format.encode_prompts(["0"]), *pair_format.encode_responses(["0"]))
        around = sum(map(len, encoded)) - 2
        example = examples[0]
        most_tokens = len(example.prompt) + len(example.response or "") + around
        if most_tokens > length:
            raise pair_too_long(examples.name, most_tokens, length)
        return cls(
            examples=examples,
            format=pair_format,
            sequence_length=length,
            pairs_per_window=length // most_tokens,
        )

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.examples.name

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self.examples) // self.pairs_per_window

    @property
    def fingerprint(self) -> str:
        """A hash of the values that determine the examples, and of the first ones' tokens."""
        facts = (self.examples.fingerprint, self.sequence_length, self.pairs_per_window)
        return self._encode(range(FINGERPRINTED)).hashed_after(repr(facts))

    def read(self, windows: NDArray[np.int64]) -> Samples:
        """Reads windows by their indices, [samples].

        Raises:
            UsageError: a pair has more tokens than characters, and does not fit.
        """
        each = self.pairs_per_window
        firsts = range(0, len(windows) * each, each)
        pairs = self._encode((windows[:, None] * each + np.arange(each)).ravel().tolist())
        return pairs.read([(first, first + each) for first in firsts], self.sequence_length)

    def _encode(self, indices: Sequence[int]) -> Pairs:
        length = self.sequence_length // self.pairs_per_window
        return encode_pairs(self.examples, self.format, indices, length=length)


def open_pairs(config: Config) -> Corpora:
    """Opens prompts and responses for supervised training.

    Raises:
        UsageError: a file cannot be read, or an example does not fit the configuration.
    """
    training, validation = open_examples(config, needs_responses=True)
    pair_format = open_format(config, training, validation)
    length = config.data.sequence_length

    def packed(examples: Examples, key: str) -> Corpus:
        with naming_setting(key):
            return PackedPairs(examples, pair_format, length=length)

    held_out: dict[str | None, Corpus]
    if config.data.task is None:
        if not len(training):
            raise UsageError(
                f"{training.name} has no pair for training",
                keys=(DataConfig.path, DataConfig.split),
                remedy=("more lines", "a larger first share of data.split"),
            )
        trained = packed(training, DataConfig.path)
        held_out = {
            name: packed(examples, DataConfig.validation)
            for name, examples in open_named_examples(config).items()
        }
        if not held_out:
            split = config.data.validation_path is None
            held_out = {
                None: packed(validation, DataConfig.path if split else DataConfig.validation_path)
            }
    else:
        trained = endless = TaskPairs.of(training, pair_format, length=length)
        held_out = {None: replace(endless, examples=validation)}
        if len(validation):
            validation[0]  # refuses a task with too few prompts
    return Corpora(
        training=Blend([trained], seed=config.seed),
        validation={name: Blend([corpus]) for name, corpus in held_out.items()},
        tokenizer=pair_format.tokenizer,
        vocab_size=len(pair_format.is_special),
        special_tokens=pair_format.special_tokens,
    )


def open_format(config: Config, *examples: Examples) -> PairFormat:
    """Opens the tokenizer and the chat template that turn examples into tokens.

    Raises:
        UsageError: a file cannot be read, or the model's vocabulary is too small.
    """
    data, template = config.data, None
    tokenizer, special_tokens, folder = open_named_tokenizer(
        data.tokenizer, lambda: _alphabet(config, examples)
    )
    if folder is not None and data.chat_template == "auto":
        template = read_chat_template(folder)
    check_vocabulary(data.tokenizer, vocab_size_of(tokenizer), cut_of(config))
    return PairFormat(
        tokenizer.to_str(),
        end=data.response_end,
        template=template,
        special_tokens=special_tokens,
    )


def _alphabet(config: Config, examples: Sequence[Examples]) -> set[str]:
    alphabet = set(config.data.response_end or NEW_LINE)
    if config.data.task is not None:
        return alphabet | set(TASK_CHARACTERS)
    for side in examples:
        for index in range(len(side)):
            example = side[index]
            alphabet |= {*example.prompt, *(example.response or "")}
    return alphabet
