"""Pairs of prompts and responses, packed whole into windows. Only responses are labels."""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.config.corpora import NAMED_KEY
from rampcli.config.schema import Config
from rampcli.data.blend import Blend, Corpora
from rampcli.data.chat_template import ChangedPromptError, read_chat_template
from rampcli.data.conversations import ConversationFormat
from rampcli.data.corpus import IGNORED, PADDING, Corpus, Samples
from rampcli.data.examples import TASK_CHARACTERS, Examples, open_examples, open_named_examples
from rampcli.data.files import check_vocabulary, cut_of, open_named_tokenizer
from rampcli.data.messages import Message
from rampcli.data.pair_format import NEW_LINE, PairFormat
from rampcli.data.tokenizer import vocab_size_of
from rampcli.errors import UsageError, naming_setting, set_to

ENCODED_AT_ONCE = 1024
"""Most examples that are encoded together."""
CHARACTERS_AT_ONCE = 2**20
"""Most characters that are encoded together, unless one example has more. Each takes 150 bytes."""
LONGEST_TOKEN = 256
"""Characters of the longest token. Known tokenizers have tokens of up to 128 spaces."""
FINGERPRINTED = 8
"""Examples of a task whose tokens are part of its fingerprint."""

Texts = tuple[int, str | tuple[Message, ...], str]
"""Index, prompt (or all messages before the last response) and response of an example."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Tokens of pairs, end to end. A pair is a prompt and its response with the end token.

    A conversation is a pair whose response has later prompts in it.

    Attributes:
        tokens: any unsigned integer type, [tokens].
        starts: offset of each pair, and the number of tokens, int64 [pairs + 1].
        prompts: number of tokens of each prompt, int64 [pairs].
        later: offsets of the tokens of later prompts, ascending, int64 [tokens of later prompts].
    """

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    prompts: NDArray[np.int64]
    later: NDArray[np.int64]

    def hashed_after(self, facts: str) -> str:
        """Returns a hash of the facts and of the pairs."""
        digest = hashlib.sha256(facts.encode())
        for part in (self.tokens, self.starts, self.prompts, self.later):
            digest.update(part.tobytes())
        return digest.hexdigest()

    def read(self, ranges: Sequence[tuple[int, int]], length: int) -> Samples:
        """Returns a sample of `length` tokens for each range of pairs, first and end.

        Positions restart at each pair and at the padding. Tokens of responses are the labels of the
        tokens before them; all other labels are ignored.
        """
        shape = (len(ranges), length)
        tokens, labels = np.full(shape, PADDING, np.int64), np.full(shape, IGNORED, np.int64)
        positions = np.empty(shape, np.int64)
        for row, (first, end) in enumerate(ranges):
            starts = self.starts[first : end + 1]
            count, lengths = int(starts[-1] - starts[0]), np.diff(starts)
            places = np.arange(count) - np.repeat(starts[:-1] - starts[0], lengths)
            tokens[row, :count] = self.tokens[starts[0] : starts[-1]]
            responses = np.flatnonzero(places >= np.repeat(self.prompts[first:end], lengths))
            labels[row, responses - 1] = tokens[row, responses]
            inner = self.later[slice(*np.searchsorted(self.later, starts[[0, -1]]))] - starts[0]
            labels[row, inner - 1] = IGNORED
            positions[row, :count], positions[row, count:] = places, np.arange(length - count)
        return Samples(tokens, labels, positions)


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
            raise _too_long(examples.name, most_tokens, length)
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


def encode_pairs(
    examples: Examples, pair_format: PairFormat, indices: Sequence[int], *, length: int
) -> Pairs:
    """Encodes examples, in blocks.

    Args:
        length: largest number of tokens of a pair.

    Raises:
        UsageError: an example cannot be encoded, or has more tokens; the message names it.
    """
    kind = np.min_scalar_type(len(pair_format.is_special) - 1)
    tokens, ends, prompts = [np.empty(0, kind)], array("q", [0]), array("q")
    later, conversations = array("q"), ConversationFormat(pair_format)
    for block in blocks_of(examples, indices, length=length):
        parts = []
        for (index, *_), turns in zip(
            block, _encode_block(examples, conversations, block), strict=True
        ):
            borders = [*accumulate(map(len, turns), initial=ends[-1])]
            count = borders[-1] - ends[-1]
            if not len(turns[0]):
                raise UsageError(
                    f"{examples.place(index)}: the prompt has no tokens", remedy="a prompt"
                )
            if count > length:
                raise _too_long(examples.place(index), count, length)
            parts += turns
            prompts.append(len(turns[0]))
            for first, end in zip(borders[2::2], borders[3::2], strict=False):
                later.extend(range(first, end))
            ends.append(borders[-1])
        tokens.append(np.concatenate(parts).astype(kind))
    whole, *numbers = np.concatenate(tokens), ends, prompts, later
    return Pairs(whole, *(np.array(one, np.int64) for one in numbers))


def check_template(
    examples: Examples, pair_format: PairFormat, indices: Sequence[int], *, length: int
) -> None:
    """Checks that a chat template leaves the prompts of examples as they are.

    Raises:
        UsageError: it changes one; the message names it.
    """
    if pair_format.special_tokens.chat_template is None:
        return
    conversations = ConversationFormat(pair_format)
    for block in blocks_of(examples, indices, length=length, with_responses=False):
        prompts = [(index, prompt) for index, prompt, _ in block if isinstance(prompt, str)]
        longer = [(index, prompt) for index, prompt, _ in block if not isinstance(prompt, str)]
        for index, messages in longer:
            try:
                conversations.layout_of(messages)
            except UsageError as error:
                error.add_context(examples.place(index))
                raise
        _check_each(examples, prompts, pair_format.check_prompts)
        _check_each(examples, longer, conversations.check)


def _check_each(
    examples: Examples, prompts: list[tuple[int, Any]], check: Callable[[list[Any]], None]
) -> None:
    """Checks prompts; adds the place of one that the template changes."""
    try:
        check([prompt for _, prompt in prompts])
    except ChangedPromptError as error:
        error.add_context(examples.place(prompts[error.number][0]))
        raise


def blocks_of(
    examples: Examples, indices: Sequence[int], *, length: int, with_responses: bool = True
) -> Iterator[list[Texts]]:
    """Yields examples in blocks that are small enough to be encoded at once.

    Args:
        length: largest number of tokens of a prompt and its response.
        with_responses: give the texts of responses, and not "".

    Raises:
        UsageError: an example has more characters than `length` tokens, and would take much memory
            to encode; the message names it.
    """
    block, characters = list[Texts](), 0
    most = max(CHARACTERS_AT_ONCE, LONGEST_TOKEN * length)
    for index in indices:
        example = examples[index]
        response = (example.response or "") if with_responses else ""
        prompt = example.messages or example.prompt
        said = prompt if isinstance(prompt, str) else "".join(one.content for one in prompt)
        count = len(said) + len(response)
        if count > most:
            raise UsageError(
                f"{examples.place(index)}: the {'pair' if with_responses else 'prompt'} has"
                f" {count:,} characters, too many for {length:,} tokens",
                keys=("data.sequence_length",),
                remedy=f"a text of up to {most:,} characters",
            )
        is_full = len(block) == ENCODED_AT_ONCE or characters + count > CHARACTERS_AT_ONCE
        if block and is_full:
            yield block
            block, characters = [], 0
        block.append((index, prompt, response))
        characters += count
    if block:
        yield block


def _encode_block(
    examples: Examples, conversations: ConversationFormat, block: list[Texts]
) -> list[list[NDArray[Any]]]:
    """Returns the tokens of the prompts and responses of each example, in turn."""
    pair_format = conversations.pair_format
    try:
        pairs = [(text, response) for _, text, response in block if isinstance(text, str)]
        prompts = iter(pair_format.encode_prompts([prompt for prompt, _ in pairs]))
        responses = iter(pair_format.encode_responses([response for _, response in pairs]))
        return [
            [next(prompts), next(responses)]
            if isinstance(text, str)
            else conversations.encode(text, response)
            for _, text, response in block
        ]
    except UsageError as error:
        if len(block) > 1:
            for texts in block:  # the first bad one raises
                _encode_block(examples, conversations, [texts])
        error.add_context(examples.place(block[0][0]))
        raise


def _too_long(place: str, count: int, length: int) -> UsageError:
    return UsageError(
        f"{place}: the pair has {count:,} tokens, and there is room for {length:,}",
        keys=("data.sequence_length",),
        remedy=set_to("data.sequence_length", count),
    )


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
                keys=("data.path", "data.split"),
                remedy=("more lines", "a larger first share of data.split"),
            )
        trained = packed(training, "data.path")
        held_out = {
            name: packed(examples, NAMED_KEY)
            for name, examples in open_named_examples(config).items()
        }
        if not held_out:
            split = config.data.validation_path is None
            held_out = {None: packed(validation, "data.path" if split else "data.validation_path")}
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
    """Returns the characters of all texts and of the token that ends a response."""
    alphabet = set(config.data.response_end or NEW_LINE)
    if config.data.task is not None:
        return alphabet | set(TASK_CHARACTERS)
    for side in examples:
        for index in range(len(side)):
            example = side[index]
            alphabet |= {*example.prompt, *(example.response or "")}
    return alphabet
