"""Reads the tokenizer of a checkpoint, and writes it for transformers."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rampcli.checkpoint.state import SPECIAL_TOKENS, TOKENIZER
from rampcli.data.chat_template import TEMPLATE_FILE, TOKENIZER_CONFIG_FILE
from rampcli.data.special_tokens import NONE_KNOWN, ROLES, SpecialTokens, special_tokens_of
from rampcli.data.tokenizer import open_tokenizer, vocab_size_of
from rampcli.errors import DamagedFileError, UsageError
from rampcli.files.guarded_folder import replace_file, write_json
from rampcli.files.records import COUNT, is_unicode, read_json
from rampcli.runs.manifest import Checkpoint
from rampcli.settings.config import Config

_SPECIAL_TOKENS = {
    "ends": [COUNT],
    "names": {f"{role}?": str for role in ROLES},
    "chat_template": (str, None),
}


def read_tokenizer(config: Config, checkpoint: Checkpoint) -> Tokenizer | None:
    """Returns the tokenizer that a model was trained with, or None if its corpus had none.

    Raises:
        DamagedFileError: the file is not a tokenizer, or has tokens that the model does not have.
    """
    if TOKENIZER not in checkpoint.files:
        return None
    try:
        tokenizer = open_tokenizer(checkpoint.path / TOKENIZER)
    except UsageError as error:
        raise DamagedFileError(error.message) from error
    # Checked before use: encoding and writing take memory in proportion to the largest token.
    if vocab_size_of(tokenizer) > config.model.vocabulary:
        raise DamagedFileError(
            f"the tokenizer of {checkpoint.path} has tokens that the model does not have"
        )
    return tokenizer


def saved_special_tokens(checkpoint: Checkpoint, tokenizer: Tokenizer) -> SpecialTokens:
    """Returns the special tokens that a checkpoint names. Those of old versions name no tokens.

    Raises:
        DamagedFileError: the file is damaged, or names tokens that the tokenizer does not have.
    """
    if SPECIAL_TOKENS not in checkpoint.files:
        return NONE_KNOWN
    path = checkpoint.path / SPECIAL_TOKENS
    content = read_json(path, _SPECIAL_TOKENS)
    names = {role: content["names"][role] for role in ROLES if role in content["names"]}
    vocabulary = tokenizer.get_vocab()
    if not (
        vocabulary.keys() >= {*names.values()} and {*vocabulary.values()} >= {*content["ends"]}
    ):
        raise DamagedFileError(f"{path} names tokens that the tokenizer does not have")
    if content["chat_template"] is not None and not is_unicode(content["chat_template"]):
        raise DamagedFileError(f"{path} is damaged: chat_template is not Unicode")
    return SpecialTokens(
        ends=tuple(content["ends"]), names=names, chat_template=content["chat_template"]
    )


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, special_tokens: SpecialTokens, *, sequence_length: int
) -> None:
    """Writes the files that `AutoTokenizer.from_pretrained` reads.

    Text has the tokens that it had in training: nothing is added around it.
    """
    names, ends = dict(special_tokens.names), special_tokens.ends
    # A chat template may name eos_token, and keeps the text that it was trained with.
    keeps = special_tokens.chat_template is not None and "eos_token" in names
    if not keeps and ends and ends[0] in special_tokens_of(tokenizer):
        names["eos_token"] = str(tokenizer.id_to_token(ends[0]))
    content = json.loads(tokenizer.to_str()) | {"post_processor": None}
    replace_file(folder / TOKENIZER, json.dumps(content, ensure_ascii=False, indent=2))
    write_json(
        folder / TOKENIZER_CONFIG_FILE,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": sequence_length,
            "clean_up_tokenization_spaces": False,
            **names,
        },
    )
    if special_tokens.chat_template is not None:
        replace_file(folder / TEMPLATE_FILE, special_tokens.chat_template)


def token_ids(special_tokens: SpecialTokens, tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the token numbers of `config.json` and `generation_config.json`."""
    ends = list(special_tokens.ends)
    ids: dict[str, Any] = {
        "bos_token_id": None,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    for role in ("bos_token", "pad_token"):
        if role in special_tokens.names:
            ids[f"{role}_id"] = tokenizer.token_to_id(special_tokens.names[role])
    return ids
