"""Special tokens of a run's text: those that end it, and those that a chat template names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rampcli.data.chat_template import (
    ChatTemplate,
    read_beside_tokenizer,
    read_tokenizer_config,
    tokens_of,
)
from rampcli.files.records import COUNT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names of special tokens in transformers."""
GENERATION_FILE, MODEL_FILE = "generation_config.json", "config.json"
_GENERATION = {"eos_token_id?": (COUNT, [COUNT], None)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """Special tokens of a run's text. Checkpoints hold them beside the tokenizer.

    Attributes:
        ends: tokens that end a text. The one that the run itself trains on comes first.
        names: special tokens as text, by their names in transformers (`ROLES`).
        chat_template: chat template that the prompts are written in, or None.
    """

    ends: tuple[int, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None

    def ending_with(self, *ends: int) -> "SpecialTokens":
        """Returns the same with the tokens that the run itself trains on as its first ends."""
        return replace(self, ends=tuple(dict.fromkeys((*ends, *self.ends))))

    def template(self, *, place: str) -> ChatTemplate | None:
        """Returns the chat template, or None without one. Raises what `ChatTemplate` raises."""
        if self.chat_template is None:
            return None
        return ChatTemplate(source=self.chat_template, names=self.names, place=place)

    def to_json(self) -> str:
        """Returns the content of the file in a checkpoint."""
        return json.dumps(asdict(self), indent=2)

    def before_end(self, tokens: Sequence[int]) -> list[int]:
        """Returns generated tokens, without the last one if it ends the text."""
        return list(tokens[:-1] if tokens and tokens[-1] in self.ends else tokens)


NONE_KNOWN = SpecialTokens()


def read_special_tokens(folder: Path, tokenizer: "Tokenizer") -> SpecialTokens:
    """Returns what the files beside a tokenizer say.

    They are `tokenizer_config.json`, `special_tokens_map.json` in older folders,
    `generation_config.json`, and `config.json` if that names no ends.

    A chat model may end a text with several tokens. Tokens that the tokenizer does not have are
    left out, and so are ends that are not special: an ordinary token, such as a new line, ends
    the responses of one corpus only.

    Raises:
        UsageError: a file cannot be read.
    """
    vocabulary = tokenizer.get_vocab()
    names = {
        name: token
        for name, token in tokens_of(read_tokenizer_config(folder)).items()
        if name in ROLES and token in vocabulary
    }
    told = read_beside_tokenizer(folder / GENERATION_FILE, _GENERATION).get("eos_token_id")
    if told is None:  # as transformers derives it from the model's settings
        told = read_beside_tokenizer(folder / MODEL_FILE, _GENERATION).get("eos_token_id")
    ends = [] if told is None else told if isinstance(told, list) else [told]
    if "eos_token" in names:
        ends = [vocabulary[names["eos_token"]], *ends]
    special = special_tokens_of(tokenizer)
    return SpecialTokens(
        ends=tuple(dict.fromkeys(end for end in ends if end in special)), names=names
    )


def special_tokens_of(tokenizer: "Tokenizer") -> dict[int, str]:
    """Returns the special tokens, such as the end of a document, by their numbers."""
    added = tokenizer.get_added_tokens_decoder()
    return {number: token.content for number, token in added.items() if token.special}
