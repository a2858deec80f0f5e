"""Prompts, responses and conversations as tokens. Examples are encoded in blocks."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rampcli.data.chat_template import USER, ChangedPromptError, Message
from rampcli.data.corpus import IGNORED, PADDING, Samples
from rampcli.data.examples import Examples
from rampcli.data.pair_format import PairFormat
from rampcli.errors import UsageError, set_to
from rampcli.settings.data import DataConfig

ENCODED_AT_ONCE = 1024
"""Most examples that are encoded together."""
CHARACTERS_AT_ONCE = 2**20
"""Most characters that are encoded together, unless one example has more. Each takes 150 bytes."""
LONGEST_TOKEN = 256
"""Characters of the longest token. Known tokenizers have tokens of up to 128 spaces."""
Texts = tuple[int, Sequence[Message], str]
"""Index of an example, all messages before its last response, and this response."""


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
    later = array("q")
    for block in blocks_of(examples, indices, length=length):
        parts = []
        for (index, *_), turns in zip(
            block, _encode_block(examples, pair_format, block), strict=True
        ):
            borders = [*accumulate(map(len, turns), initial=ends[-1])]
            count = borders[-1] - ends[-1]
            if not len(turns[0]):
                raise UsageError(
                    f"{examples.place(index)}: the prompt has no tokens", remedy="a prompt"
                )
            if count > length:
                raise pair_too_long(examples.place(index), count, length)
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
    template = pair_format.template
    if template is None:
        return
    for block in blocks_of(examples, indices, length=length, with_responses=False):
        for index, messages, _ in block:
            try:
                template.layout_of(messages)
            except UsageError as error:
                error.add_context(examples.place(index))
                raise
        try:
            template.check([messages for _, messages, _ in block])
        except ChangedPromptError as error:
            error.add_context(examples.place(block[error.number][0]))
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
        messages = example.messages or (Message(USER, example.prompt),)
        count = sum(len(message.content) for message in messages) + len(response)
        if count > most:
            raise UsageError(
                f"{examples.place(index)}: the {'pair' if with_responses else 'prompt'} has"
                f" {count:,} characters, too many for {length:,} tokens",
                keys=(DataConfig.sequence_length,),
                remedy=f"a text of up to {most:,} characters",
            )
        is_full = len(block) == ENCODED_AT_ONCE or characters + count > CHARACTERS_AT_ONCE
        if block and is_full:
            yield block
            block, characters = [], 0
        block.append((index, messages, response))
        characters += count
    if block:
        yield block


def _encode_block(
    examples: Examples, pair_format: PairFormat, block: list[Texts]
) -> list[list[NDArray[Any]]]:
    """Returns the tokens of the prompts and responses of each example, in turn."""
    try:
        return pair_format.encode((messages, response) for _, messages, response in block)
    except UsageError as error:
        if len(block) > 1:
            for texts in block:  # the first bad one raises
                _encode_block(examples, pair_format, [texts])
        error.add_context(examples.place(block[0][0]))
        raise


def pair_too_long(place: str, count: int, length: int) -> UsageError:
    """Returns the error about a pair of `count` tokens where there is room for `length`."""
    return UsageError(
        f"{place}: the pair has {count:,} tokens, and there is room for {length:,}",
        keys=(DataConfig.sequence_length,),
        remedy=set_to(DataConfig.sequence_length, count),
    )
