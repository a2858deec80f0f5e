"""How prompts and responses become tokens, and how responses become text again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data.chat_template import ChatTemplate
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

Tokens = NDArray[Any]


class PromptFormat:
    """Turns prompts into tokens.

    The texts come from strangers: what looks like a special token in them is encoded as ordinary
    text. Special tokens that the chat template writes are special.

    Args:
        tokenizer: contents of `tokenizer.json`.
        template: chat template of the prompts, or None.

    Attributes:
        tokenizer: contents of `tokenizer.json`.
        is_special: True for each special token, [vocabulary of the tokenizer].
    """

    def __init__(self, tokenizer: str, *, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self._reader = Tokenizer.from_str(tokenizer)
        ordinary = Tokenizer.from_str(tokenizer)
        ordinary.encode_special_tokens = True
        self._encode_ordinary = encoder_of(ordinary)
        # One flag per token: much faster than numpy.isin for short texts.
        self.is_special = np.zeros(vocab_size_of(ordinary), dtype=np.bool_)
        self.is_special[[*special_tokens_of(ordinary)]] = True
        self._chat = None if template is None else _Chat(template, self)

    def encode_prompts(self, texts: list[str]) -> list[Tokens]:
        """Returns the tokens of prompts, each in the chat template if there is one.

        Raises:
            UsageError: the tokenizer cannot encode a text, or not as ordinary text.
        """
        return self.encode_text(texts) if self._chat is None else self._chat.encode(texts)

    def check_prompts(self, texts: Sequence[str]) -> None:
        """Checks that the chat template, if there is one, leaves prompts as they are.

        Raises:
            ChangedPromptError: it changes one of them.
            UsageError: it fails or exceeds its limits.
        """
        if self._chat is not None:
            self._chat.template.check(texts)

    def encode_text(self, texts: list[str]) -> list[Tokens]:
        """Returns the tokens of texts, without special ones.

        Raises:
            UsageError: the tokenizer cannot encode a text, or not as ordinary text.
        """
        encoded = self._encode_ordinary(texts)
        for tokens in encoded:
            if len(found := self.special_in(tokens)):
                raise UsageError(
                    f"the tokenizer has {self._reader.id_to_token(int(found[0]))!r} in its ordinary"
                    " vocabulary, so this name of a special token cannot be encoded as text",
                    remedy="texts without the names of special tokens",
                )
        return encoded

    def special_in(self, tokens: Tokens) -> Tokens:
        """Returns the special tokens among tokens, in order."""
        return tokens[self.is_special[tokens]]


class PairFormat(PromptFormat):
    """Turns prompts and responses into tokens.

    Args:
        tokenizer: contents of `tokenizer.json`.
        end: text of the token that ends a response, or None for the usual one.
        template: chat template of the prompts, or None.
        special_tokens: special tokens that the files beside the tokenizer name.

    Attributes:
        end: the token that ends a response.
        template: the chat template, or None.
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
        self.template = template
        with naming_setting(DataConfig.response_end):
            self.end = self._number_of(end)
        self.special_tokens = replace(
            special_tokens.ending_with(self.end),
            chat_template=None if template is None else template.source,
        )

    def encode_responses(self, texts: list[str]) -> list[Tokens]:
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
        """Returns the token that ends a response."""
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


class _Chat:
    """Encodes prompts in a chat template."""

    def __init__(self, template: ChatTemplate, pairs: PromptFormat) -> None:
        self.template = template
        self.pairs = pairs
        # Special tokens are found in the text that this encodes.
        reader = Tokenizer.from_str(pairs.tokenizer)
        self.encode_whole = encoder_of(reader)
        with failing_as("the tokenizer cannot encode the chat template"):
            before = reader.encode(template.before, add_special_tokens=False)
            after = reader.encode(template.after, add_special_tokens=False)
        first, last = (np.array(one.ids, dtype=np.int64) for one in (before, after))
        self.special = np.concatenate([pairs.special_in(first), pairs.special_in(last)])
        # Up to the last special token before the prompt, and from the first one after it.
        end = max(np.flatnonzero(pairs.is_special[first]) + 1, default=0)
        start = min(np.flatnonzero(pairs.is_special[last]), default=len(last))
        self.first, self.last = first[:end], last[start:]
        self.text_before = template.before[before.offsets[end - 1][1] if end else 0 :]
        self.text_after = template.after[: after.offsets[start][0] if start < len(last) else None]

    def encode(self, prompts: list[str]) -> list[Tokens]:
        """Returns the tokens of prompts.

        A prompt without special tokens has the tokens of the whole rendered text. Otherwise the
        text between the template's own special tokens is encoded as ordinary text.
        """
        rendered = [self.template.around(prompt) for prompt in prompts]
        return [
            tokens
            if np.array_equal(self.pairs.special_in(tokens), self.special)
            else self._encode_apart(prompt)
            for prompt, tokens in zip(prompts, self.encode_whole(rendered), strict=True)
        ]

    def _encode_apart(self, prompt: str) -> Tokens:
        inside = prompt.strip() if self.template.strips else prompt
        (text,) = self.pairs.encode_text([f"{self.text_before}{inside}{self.text_after}"])
        return np.concatenate([self.first, text, self.last])
