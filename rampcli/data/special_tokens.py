"""Finds a tokenizer's files, and reads the special tokens that they name. Needs no tokenizers.

Special tokens end a text, or are named by a chat template.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rampcli.data.chat_template import (
    NAMES_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    ChatTemplate,
    read_beside_tokenizer,
    read_tokenizer_config,
    tokens_of,
)
from rampcli.errors import UsageError, naming_setting, set_to
from rampcli.files import hub
from rampcli.files.records import COUNT
from rampcli.settings.data import DataConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Names of special tokens in transformers."""
GENERATION_FILE, MODEL_FILE = "generation_config.json", "config.json"
BESIDE = (TOKENIZER_CONFIG_FILE, NAMES_FILE, TEMPLATE_FILE, GENERATION_FILE, MODEL_FILE)
"""Files beside a tokenizer that tell its special tokens and its chat template."""
TOKENIZER_REMEDY = (
    "a model with tokenizer.json, which AutoTokenizer.from_pretrained(NAME).save_pretrained(\
FOLDER) writes"
)
MEANT_TOKENIZERS = {"byte": "bytes", "char": "chars", "character": "chars", "characters": "chars"}
TRAINED = "bpe"
"""Names a kind of tokenizer, which `rampcli data build` trains."""
TRAIN = "`rampcli data build FILE --train-bpe 8192 --output PREFIX`, and data=indexed"
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


def name_meant(text: str) -> str | None:
    """Returns the name that a word for a tokenizer stands for, or None if it is not such a word."""
    meant = ({TRAINED: TRAINED} | MEANT_TOKENIZERS).get(text.lower())
    return None if meant is None or Path(text).exists() else meant


def find_tokenizer(text: str) -> tuple[str, Path]:
    """Returns a tokenizer's name and its file, downloading it if necessary.

    The name is the word itself, or NAME@COMMIT for a model of the hub.

    Raises:
        RampcliError: a folder or a model has no `tokenizer.json`, or it cannot be downloaded.
    """
    if hub.is_hub_name(text):
        snapshot = hub.open_snapshot(text, hub.TOKENIZER_FILE, remedy=TOKENIZER_REMEDY)
        return snapshot.name, snapshot.folder / hub.TOKENIZER_FILE
    return text, _file_of(text)


def tokenizer_path(text: str) -> Path:
    """Returns the file that `data.tokenizer` names, downloading it if necessary.

    The files of a model that tell its special tokens and its chat template are downloaded, too.

    Args:
        text: value of the setting, and neither `bytes` nor `chars`.

    Raises:
        RampcliError: as `find_tokenizer`, or a model of the hub is named without its commit.
    """
    with naming_setting(DataConfig.tokenizer):
        if (meant := name_meant(text)) is not None:
            raise UsageError(
                f"{text} is not a tokenizer",
                remedy=f"{TRAIN} data.path=PREFIX"
                if meant == TRAINED
                else set_to(DataConfig.tokenizer, meant),
            )
        if not hub.is_hub_name(text):
            return _file_of(text)
        snapshot = hub.open_pinned(
            text, hub.TOKENIZER_FILE, key=DataConfig.tokenizer, remedy=TOKENIZER_REMEDY
        )
        for file in BESIDE:
            snapshot.find(file)
    return snapshot.folder / hub.TOKENIZER_FILE


def _file_of(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        return path
    if not (path / hub.TOKENIZER_FILE).exists():
        raise UsageError(f"{path} has no {hub.TOKENIZER_FILE}", remedy=TOKENIZER_REMEDY)
    return path / hub.TOKENIZER_FILE
