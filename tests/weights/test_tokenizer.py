import json

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from chat_folders import CHATML, make_tokenizer
from rampcli.checkpoint.state import SPECIAL_TOKENS, TOKENIZER
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import DamagedFileError
from rampcli.runs.manifest import Checkpoint
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.weights.tokenizer import (
    read_tokenizer,
    saved_special_tokens,
    token_ids,
    write_tokenizer,
)

HOSTILE_TOKENIZERS = {
    "not JSON": b"{",
    "endless nesting": b"[" * 100_000,
    "no tokens": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
    "merges of missing tokens": b'{"version": "1.0", "model": {"type": "BPE", '
    b'"vocab": {"a": 0}, "merges": ["x y"]}}',
    "escape sequences": b'{"version": "\\u001b[31m"}',
}


@pytest.mark.parametrize("content", HOSTILE_TOKENIZERS.values(), ids=HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_gives_one_error(tmp_path, content):
    (tmp_path / TOKENIZER).write_bytes(content)
    with pytest.raises(DamagedFileError) as refused:
        read_tokenizer(Config(), Checkpoint(tmp_path, {"files": {TOKENIZER: {}}}))
    assert str(refused.value).isascii()
    assert "\x1b" not in str(refused.value)


def test_a_tokenizer_is_read_if_the_manifest_lists_it_and_the_model_has_its_tokens(tmp_path):
    (tmp_path / TOKENIZER).write_text(byte_tokenizer().to_str())
    listed = Checkpoint(tmp_path, {"files": {TOKENIZER: {}}})
    found = read_tokenizer(Config(), listed)
    assert found is not None
    assert found.to_str() == byte_tokenizer().to_str()
    assert read_tokenizer(Config(), Checkpoint(tmp_path, {"files": {}})) is None
    with pytest.raises(DamagedFileError, match="has tokens that the model does not have"):
        read_tokenizer(Config(model=ModelConfig(vocab_size=255)), listed)


LISTED = {"files": {SPECIAL_TOKENS: {}}}
CHAT = make_tokenizer()
IM_END, EOT = (CHAT.token_to_id(name) for name in ("<|im_end|>", "<|eot_id|>"))


def test_special_tokens_are_read_as_they_were_saved(tmp_path):
    saved = SpecialTokens(
        ends=(IM_END, 0), names={"bos_token": "<|begin_of_text|>"}, chat_template=CHATML
    )
    (tmp_path / SPECIAL_TOKENS).write_text(saved.to_json())
    assert saved_special_tokens(Checkpoint(tmp_path, LISTED), CHAT) == saved
    earlier = Checkpoint(tmp_path, {"files": {}})
    assert saved_special_tokens(earlier, CHAT) == SpecialTokens()


@pytest.mark.parametrize(
    "harm",
    [
        {"ends": [300]},
        {"ends": [10**12]},
        {"ends": [-1]},
        {"ends": 5},
        {"names": {"eos_token": "<|none|>"}},
        {"names": {"eos_token": 5}},
        {"names": {"eos_token": "\ud800"}},
        {"chat_template": "\ud800"},
        {"chat_template": 5},
    ],
    ids=str,
)
def test_damaged_special_tokens_give_one_error(tmp_path, harm):
    content = {"ends": [], "names": {}, "chat_template": None} | harm
    (tmp_path / SPECIAL_TOKENS).write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=SPECIAL_TOKENS):
        saved_special_tokens(Checkpoint(tmp_path, LISTED), CHAT)


def test_transformers_reads_the_special_tokens_and_the_chat_template_and_adds_nothing(tmp_path):
    from transformers import AutoTokenizer  # imports take a second

    tokenizer = make_tokenizer()
    begin = "<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    special_tokens = SpecialTokens(
        ends=(IM_END, EOT), names={"bos_token": begin[0]}, chat_template=CHATML
    )
    write_tokenizer(tmp_path, tokenizer, special_tokens, sequence_length=64)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.bos_token_id, len(theirs)) == (IM_END, begin[1], 300)
    assert theirs.chat_template == CHATML
    assert theirs("the user")["input_ids"] == CHAT.encode("the user").ids
    wanted = {"bos_token_id": begin[1], "eos_token_id": [IM_END, EOT]}
    assert token_ids(special_tokens, tokenizer) == wanted


@pytest.mark.parametrize(
    ("special_tokens", "written"),
    [
        (SpecialTokens(), {}),
        # A new line that were a special token would disappear from decoded texts.
        (SpecialTokens(ends=(CHAT.token_to_id("Ċ"),)), {}),
        (
            SpecialTokens(ends=(EOT,), names={"eos_token": "<|im_end|>"}),
            {"eos_token": "<|eot_id|>"},
        ),
        # A chat template may write eos_token.
        (
            SpecialTokens(ends=(EOT,), names={"eos_token": "<|im_end|>"}, chat_template=CHATML),
            {"eos_token": "<|im_end|>"},
        ),
    ],
    ids=["none", "an ordinary token", "another end", "another end of a chat model"],
)
def test_the_end_of_a_text_is_named_if_it_is_special(tmp_path, special_tokens, written):
    write_tokenizer(tmp_path, CHAT, special_tokens, sequence_length=64)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert {name: text for name, text in config.items() if name.endswith("_token")} == written
    kept = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert kept.get_vocab() == CHAT.get_vocab()
