"""How prompts and responses become tokens, and how responses become text again."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data.chat_template import ASSISTANT, USER, ChatTemplate, Message
from rampcli.data.special_tokens import NONE_KNOWN, SpecialTokens, special_tokens_of
from rampcli.data.tokenizer import (
    decode,
    encoder_of,
    failing_as,
    has_single_characters,
    usual_end_of_document,
    vocab_size_of,
)
from rampcli.errors import UsageError, naming_setting, set_to
from rampcli.settings.data import DataConfig

NEW_LINE = "\n"
"""Ends a response if all tokens are single bytes or characters."""

TextTokens = NDArray[Any]


class _Written(NamedTuple):
    """Text that a chat template writes, as tokens with their offsets in it, and its special ones.

    `special` has the indices of the special tokens.
    """

    tokens: TextTokens
    offsets: list[tuple[int, int]]
    special: NDArray[np.int64]


class PromptFormat:
    """Turns prompts into tokens.

    The texts come from strangers: what looks like a special token in them is encoded as ordinary
    text. Special tokens that the chat template writes are special.

    Args:
        tokenizer: contents of `tokenizer.json`.
        template: chat template of the prompts, or None.

    Attributes:
        is_special: True for each special token, [vocabulary of the tokenizer].
    """

    def __init__(self, tokenizer: str, *, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._reader = Tokenizer.from_str(tokenizer)
        self._encode_whole = encoder_of(self._reader)
        ordinary = Tokenizer.from_str(tokenizer)
        ordinary.encode_special_tokens = True
        self._encode_ordinary = encoder_of(ordinary)
        # One flag per token: much faster than numpy.isin for short texts.
        self.is_special = np.zeros(vocab_size_of(ordinary), dtype=np.bool_)
        self.is_special[[*special_tokens_of(ordinary)]] = True
        self._written = dict[str, _Written]()

    def encode_prompts(self, texts: Sequence[str]) -> list[TextTokens]:
        """Returns the tokens of prompts, each in the chat template if there is one.

        Raises:
            UsageError: the tokenizer cannot encode a text, or not as ordinary text.
        """
        return self.encode_pieces([self.lay_out([Message(USER, text)]) for text in texts])

    def lay_out(self, messages: Sequence[Message]) -> list[str]:
        """Returns what the chat template writes and the contents of messages, in turn.

        Raises:
            UsageError: as in `ChatTemplate.layout_of`, or several messages have no template.
        """
        if self.template is not None:
            return self.template.layout_of(messages).pieces(messages)
        if [message.role for message in messages] != [USER]:
            raise UsageError(
                "a conversation of several messages needs a chat template",
                keys=(DataConfig.chat_template, DataConfig.tokenizer),
                remedy="data.tokenizer=FOLDER with a tokenizer that has a chat template",
            )
        return ["", messages[0].content, ""]

    def encode_pieces(self, prompts: Sequence[Sequence[str]]) -> list[TextTokens]:
        """Returns the tokens of prompts from their pieces.

        A prompt without special tokens has the tokens of the whole text. Otherwise the text between
        the template's own special tokens is encoded as ordinary text.

        Raises:
            UsageError: the tokenizer cannot encode a text, or not as ordinary text.
        """
        texts = ["".join(pieces) for pieces in prompts]
        if self.template is None:
            return self.encode_text(texts)
        encoded = []
        for pieces, whole in zip(prompts, self._encode_whole(texts), strict=True):
            written = [self._read(text) for text in pieces[::2]]
            special = np.concatenate([one.tokens[one.special] for one in written])
            is_safe = np.array_equal(whole[self.is_special[whole]], special)
            encoded.append(whole if is_safe else self._encode_apart(pieces, written))
        return encoded

    def _read(self, text: str) -> _Written:
        if text not in self._written:  # a template writes few texts around many messages
            with failing_as("the tokenizer cannot encode the chat template"):
                found = self._reader.encode(text, add_special_tokens=False)
            tokens = np.array(found.ids, dtype=np.int64)
            special = np.flatnonzero(self.is_special[tokens])
            self._written[text] = _Written(tokens, found.offsets, special)
        return self._written[text]

    def _encode_apart(self, pieces: Sequence[str], written: Sequence[_Written]) -> TextTokens:
        """Returns the tokens of a prompt whose contents have names of special tokens."""
        parts, text = list[TextTokens](), ""
        for number, (tokens, offsets, special) in enumerate(written):
            template, *content = pieces[2 * number : 2 * number + 2]
            if len(special):
                start = special[0] if number else 0
                end = special[-1] + 1 if content else len(tokens)
                text += template[: offsets[start][0]] if number else ""
                parts += [*self.encode_text([text] if text else []), tokens[start:end]]
                text = template[offsets[end - 1][1] :] if content else ""
            else:
                text += template
            text += "".join(content)
        return np.concatenate([*parts, *self.encode_text([text] if text else [])])

    def encode_text(self, texts: list[str]) -> list[TextTokens]:
        """Returns the tokens of texts, without special ones.

        Raises:
            UsageError: the tokenizer cannot encode a text, or not as ordinary text.
        """
        encoded = self._encode_ordinary(texts)
        for tokens in encoded:
            if len(found := tokens[self.is_special[tokens]]):
                raise UsageError(
                    f"the tokenizer has {self._reader.id_to_token(int(found[0]))!r} in its ordinary"
                    " vocabulary, so this name of a special token cannot be encoded as text",
                    remedy="texts without the names of special tokens",
                )
        return encoded


class PairFormat(PromptFormat):
    """Turns prompts and responses into tokens.

    Args:
        tokenizer: contents of `tokenizer.json`.
        end: text of the token that ends a response, or None for the usual one.
        template: chat template of the prompts, or None.
        special_tokens: special tokens that the files beside the tokenizer name.

    Attributes:
        end: the token that ends a response.
        special_tokens: the same with `end` and the template.

    Raises:
        UsageError: `end` is not one token, or it is not given and there is no usual one.
    """

    def __init__(
        self,
        tokenizer: str,
        *,
        end: str | None,
        template: ChatTemplate | None,
        special_tokens: SpecialTokens = NONE_KNOWN,
    ) -> None:
        super().__init__(tokenizer, template=template)
        with naming_setting(DataConfig.response_end):
            self.end = self._number_of(end)
        self.special_tokens = replace(
            special_tokens.ending_with(self.end),
            chat_template=None if template is None else template.source,
        )

    def encode(
        self, conversations: Iterable[tuple[Sequence[Message], str]]
    ) -> list[list[TextTokens]]:
        """Returns the tokens of conversations: prompts and responses in turn, a prompt first.

        Args:
            conversations: all messages before the last response, and this response. The messages of
                the assistant are responses, too.

        Raises:
            UsageError: the chat template does not end the assistant's messages as responses end, or
                as in `lay_out`, `encode_pieces` and `encode_responses`.
        """
        prompts, responses, counts = list[list[str]](), list[str](), list[int]()
        for messages, response in conversations:
            pieces, start, before = self.lay_out(messages), 0, len(prompts)
            for place, message in enumerate(messages):
                if message.role == ASSISTANT:
                    prompts.append(pieces[start : 2 * place + 1])
                    responses.append(pieces[2 * place + 1])
                    start = 2 * place + 2
            prompts.append(pieces[start:])
            responses.append(response)
            counts.append(len(prompts) - before)
        turns = zip(self.encode_pieces(prompts), self.encode_responses(responses), strict=True)
        found = list[list[TextTokens]]()
        for count in counts:
            first, *later = islice(turns, count)
            found.append([*first])
            for prompt, answer in later:
                if prompt[:1].tolist() != [self.end]:
                    raise UsageError(
                        "the chat template does not write data.response_end after an assistant's"
                        " message",
                        keys=(DataConfig.response_end,),
                        remedy="data.response_end=TOKEN with the token that it writes there",
                    )
                found[-1] += [prompt[1:], answer]
        return found

    def encode_responses(self, texts: list[str]) -> list[TextTokens]:
        """Returns the tokens of responses. Each ends with the token `end`, its only one.

        Raises:
            UsageError: the tokenizer cannot encode a text, or a text holds the token `end`.
        """
        encoded = self.encode_text(texts)
        for tokens in encoded:
            if (tokens == self.end).any():
                end = decode(self._reader, [self.end])
                raise UsageError(
                    f"the response holds {end!r}, which ends responses",
                    keys=(DataConfig.response_end,),
                    remedy="data.response_end=TOKEN with a token that is in no response",
                )
        return [np.append(tokens, self.end) for tokens in encoded]

    def decode_response(self, tokens: Sequence[int]) -> str:
        """Returns the text of the tokens before the first `end`, or of all of them without one.

        Raises:
            UsageError: the tokenizer cannot decode them.
        """
        inside = list(tokens)
        if self.end in inside:
            inside = inside[: inside.index(self.end)]
        return decode(self._reader, inside)

    def _number_of(self, end: str | None) -> int:
        if end is None and has_single_characters(self._reader):
            end = NEW_LINE
        elif end is None:
            end = usual_end_of_document(self._reader)
        names = [token.content for token in self._reader.get_added_tokens_decoder().values()]
        remedy = set_to(DataConfig.response_end, names[-1] if names else "TOKEN")
        if end is None:
            raise UsageError(
                "data.response_end is not given, and the tokenizer has no usual end-of-document"
                " token",
                remedy=remedy,
            )
        with failing_as(f"the tokenizer cannot encode data.response_end={end!r}", remedy=remedy):
            tokens: list[int] = self._reader.encode(end, add_special_tokens=False).ids
        if len(tokens) != 1:
            raise UsageError(
                f"data.response_end={end!r} is encoded as {len(tokens)} tokens; it must be one",
                remedy=remedy,
            )
        return tokens[0]
