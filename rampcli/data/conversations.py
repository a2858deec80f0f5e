"""How conversations of several messages become tokens, in a chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np
from tokenizers import Tokenizer

from rampcli.data.chat_template import PAD, ChangedPromptError, ChatTemplate
from rampcli.data.messages import ASSISTANT, Message
from rampcli.data.pair_format import PairFormat, Tokens
from rampcli.data.tokenizer import encoder_of, failing_as
from rampcli.errors import UsageError

PLAIN = "placeholder 7f3a9c41 of message {}."
"""Stands for the content of a message, by its number."""


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
                keys=("data.chat_template", "data.tokenizer"),
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
                keys=("data.response_end",),
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
