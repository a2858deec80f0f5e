"""Prompts, responses and conversations as tokens. Examples are encoded in blocks."""

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data.chat_template import PAD, ChangedPromptError, ChatTemplate
from rampcli.data.corpus import IGNORED, PADDING, Samples
from rampcli.data.examples import Examples
from rampcli.data.messages import ASSISTANT, Message
from rampcli.data.pair_format import PairFormat, Tokens
from rampcli.data.tokenizer import encoder_of, failing_as
from rampcli.errors import UsageError, set_to
from rampcli.settings.data import DataConfig

PLAIN = "placeholder 7f3a9c41 of message {}."
"""Stands for the content of a message, by its number."""
ENCODED_AT_ONCE = 1024
"""Most examples that are encoded together."""
CHARACTERS_AT_ONCE = 2**20
"""Most characters that are encoded together, unless one example has more. Each takes 150 bytes."""
LONGEST_TOKEN = 256
"""Characters of the longest token. Known tokenizers have tokens of up to 128 spaces."""
Texts = tuple[int, str | tuple[Message, ...], str]
"""Index, prompt (or all messages before the last response) and response of an example."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a chat template writes around messages of certain roles, up to the next response.

    Attributes:
        around: texts before each content, and after the last one, [messages + 1].
        strips: True for each content whose surrounding white space is removed, [messages].
    """

    around: tuple[str, ...]
    strips: tuple[bool, ...]

    def contents(self, messages: Sequence[Message]) -> list[str]:
        """Returns the contents of messages as the template writes them."""
        return [
            message.content.strip() if strips else message.content
            for message, strips in zip(messages, self.strips, strict=True)
        ]

    def fill(self, contents: Sequence[str]) -> str:
        """Returns the rendered text."""
        return "".join(chain(*zip_longest(self.around, contents, fillvalue="")))


class ConversationFormat:
    """Turns conversations into tokens. The assistant's messages are the responses.

    Special tokens in a message are encoded as ordinary text, as in `PromptFormat`.

    Args:
        pair_format: encodes the responses.
    """

    def __init__(self, pair_format: PairFormat) -> None:
        self.pair_format = pair_format
        self._layouts = dict[tuple[str, ...], Layout]()
        self._special = dict[str, list[tuple[int, int, int]]]()
        self._reader = Tokenizer.from_str(pair_format.tokenizer)
        self._encode_whole = encoder_of(self._reader)

    def encode(self, messages: Sequence[Message], response: str) -> list[Tokens]:
        """Returns the tokens of prompts and responses in turn, beginning with a prompt.

        Args:
            messages: all messages before the last response.

        Raises:
            UsageError: there is no chat template, it does not end the assistant's messages as
                responses end, or the tokenizer cannot encode a text.
        """
        layout = self.layout_of(messages)
        contents = layout.contents(messages)
        found, pieces, ends = list[Tokens](), [layout.around[0]], list[int]()
        for message, content, after in zip(messages, contents, layout.around[1:], strict=True):
            if message.role == ASSISTANT:
                found += [self._prompt(pieces, ends), *self.pair_format.encode_responses([content])]
                pieces, ends = [after], [self.pair_format.end]
            else:
                pieces += [content, after]
        return [*found, self._prompt(pieces, ends), *self.pair_format.encode_responses([response])]

    def check(self, conversations: Sequence[Sequence[Message]]) -> None:
        """Checks that the chat template leaves the messages of conversations as they are.

        Raises:
            ChangedPromptError: it changes a message, or writes something else around it.
            UsageError: as in `encode`, or the template fails.
        """
        filled = []
        for messages in conversations:
            layout = self.layout_of(messages)
            filled.append(layout.fill(layout.contents(messages)))
        template = self._given_template()
        for number, text in enumerate(template.render(conversations) if filled else []):
            if text != filled[number]:
                raise ChangedPromptError(template.place, number)

    def _given_template(self) -> ChatTemplate:
        if self.pair_format.template is None:
            raise UsageError(
                "a conversation of several messages needs a chat template",
                keys=(DataConfig.chat_template, DataConfig.tokenizer),
                remedy="data.tokenizer=FOLDER with a tokenizer that has a chat template",
            )
        return self.pair_format.template

    def layout_of(self, messages: Sequence[Message]) -> Layout:
        """Returns what the chat template writes around messages of these roles.

        Raises:
            UsageError: there is no chat template, or it cannot be used with these roles.
        """
        template, roles = self._given_template(), tuple(message.role for message in messages)
        if roles in self._layouts:
            return self._layouts[roles]
        plain = [Message(role, PLAIN.format(number)) for number, role in enumerate(roles)]
        padded = [Message(role, f"{PAD[0]}{content}{PAD[1]}") for role, content in plain]
        first, second = template.render([plain, padded])
        around, rest = list[str](), first
        for message in plain:
            before, _, rest = rest.partition(message.content)
            around.append(before)
        layout = Layout((*around, rest), tuple(message.content not in second for message in padded))
        if layout.fill(layout.contents(plain)) != first or (
            layout.fill(layout.contents(padded)) != second
        ):
            raise template.refusal("it does not write each message exactly once and unchanged")
        self._layouts[roles] = layout
        return layout

    def _prompt(self, pieces: Sequence[str], ends: Sequence[int]) -> Tokens:
        """Returns the tokens of a prompt, without the end of the response before it.

        Args:
            pieces: what the template writes and contents, in turn.
            ends: the token that the template must write first, if there is a response before.
        """
        special = [self._special_in(text) for text in pieces[::2]]
        (whole,) = self._encode_whole(["".join(pieces)])
        wanted = [token for found in special for token, *_ in found]
        if self.pair_format.special_in(whole).tolist() != wanted:
            whole = self._apart(pieces, special)
        if whole[: len(ends)].tolist() != list(ends):
            raise UsageError(
                "the chat template does not write data.response_end after an assistant's message",
                keys=(DataConfig.response_end,),
                remedy="data.response_end=TOKEN with the token that it writes there",
            )
        return whole[len(ends) :]

    def _special_in(self, text: str) -> list[tuple[int, int, int]]:
        """Returns each special token in a text of the template, and where it begins and ends."""
        if text not in self._special:  # a template writes few texts around many messages
            with failing_as("the tokenizer cannot encode the chat template"):
                found = self._reader.encode(text, add_special_tokens=False)
            self._special[text] = [
                (token, *offsets)
                for token, offsets in zip(found.ids, found.offsets, strict=True)
                if self.pair_format.is_special[token]
            ]
        return self._special[text]

    def _apart(
        self, pieces: Sequence[str], special: Sequence[list[tuple[int, int, int]]]
    ) -> Tokens:
        """Returns the tokens of a prompt whose contents have names of special tokens."""
        parts, text = list[Tokens](), ""
        encode = self.pair_format.encode_text
        for written, found, content in zip(pieces[::2], special, [*pieces[1::2], ""], strict=True):
            at = 0
            for token, start, end in found:
                parts += [*encode([text + written[at:start]]), np.array([token])]
                text, at = "", end
            text += f"{written[at:]}{content}"
        return np.concatenate([*parts, *encode([text])])


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
                keys=(DataConfig.sequence_length,),
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


def pair_too_long(place: str, count: int, length: int) -> UsageError:
    """Returns the error about a pair of `count` tokens where there is room for `length`."""
    return UsageError(
        f"{place}: the pair has {count:,} tokens, and there is room for {length:,}",
        keys=(DataConfig.sequence_length,),
        remedy=set_to(DataConfig.sequence_length, count),
    )
