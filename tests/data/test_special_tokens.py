import json
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from chat_folders import CHATML, make_tokenizer, write_folder
from hub_files import FIRST, fill_cache
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.chat_template import read_chat_template
from rampcli.data.sources import open_corpora
from rampcli.data.special_tokens import (
    BESIDE,
    SpecialTokens,
    find_tokenizer,
    read_special_tokens,
    tokenizer_path,
)
from rampcli.errors import UsageError
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig

CHAT = make_tokenizer()
EOT, IM_END, TEXT_END = map(CHAT.token_to_id, ("<|eot_id|>", "<|im_end|>", "<|endoftext|>"))
NAMES = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def read(folder):
    return read_special_tokens(folder, CHAT)


def test_the_files_beside_a_tokenizer_name_its_special_tokens(tmp_path):
    assert read(tmp_path) == SpecialTokens()
    write_folder(
        tmp_path, pad_token=None, unk_token="<|none|>", sep_token="\ud800", my_token="<|im_end|>"
    )
    assert read(tmp_path) == SpecialTokens(ends=(EOT,), names=NAMES)


@pytest.mark.parametrize(
    ("told", "ends"),
    [
        (None, (EOT,)),
        (IM_END, (EOT, IM_END)),
        ([TEXT_END, IM_END, EOT], (EOT, TEXT_END, IM_END)),
        # A token of text, and one that the tokenizer does not have.
        ([CHAT.token_to_id("Ċ"), 70_000], (EOT,)),
    ],
)
def test_a_chat_model_may_end_a_text_with_several_tokens(tmp_path, told, ends):
    write_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
    assert read(tmp_path).ends == ends


def test_the_settings_of_a_model_tell_its_end_if_nothing_else_does(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": IM_END, "hidden_size": 8}))
    assert read(tmp_path).ends == (IM_END,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": EOT}))
    assert read(tmp_path).ends == (EOT,)


@pytest.mark.parametrize("content", ["{", '{"eos_token_id": "x"}', '{"eos_token_id": [-1]}'])
def test_a_damaged_generation_config_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "generation_config.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=str(path)) as refused:
        read(tmp_path)
    assert refused.value.keys == ("data.tokenizer",)


def opened(**data):
    """Returns the special tokens that a run on a corpus knows."""
    config = Config(data=DataConfig(**data), model=ModelConfig(vocab_size=300))
    config.data.sequence_length, config.data.document_mask = 32, config.data.source == "pairs"
    return open_corpora(config).special_tokens


def test_pairs_end_with_their_own_token_first_and_keep_the_chat_template(tmp_path):
    tokenizer = write_folder(tmp_path, CHATML)
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "the", "response": "user"}\n')
    data = {
        "source": "pairs",
        "path": str(pairs),
        "split": [1, 0, 0],
        "tokenizer": str(tokenizer),
        "response_end": "<|im_end|>",
    }
    wanted = SpecialTokens(ends=(IM_END, EOT), names=NAMES, chat_template=CHATML)
    assert opened(**data) == wanted
    assert opened(**data, chat_template="none").chat_template is None
    as_bytes = opened(source="pairs", path=str(pairs), split=[1, 0, 0])
    assert as_bytes == SpecialTokens(ends=(ord("\n"),))


def test_texts_end_as_the_files_beside_their_tokenizer_say(tmp_path):
    tokenizer = write_folder(tmp_path, CHATML)
    (tmp_path / "text").write_text("the user and the assistant " * 40)
    data = {"source": "text", "path": str(tmp_path / "text"), "split": [1, 0, 0]}
    assert opened(**data, tokenizer=str(tokenizer)) == SpecialTokens(ends=(EOT,), names=NAMES)
    assert opened(**data) == SpecialTokens()
    assert opened(source="stdlib") == SpecialTokens()


@pytest.mark.parametrize(
    ("eod", "ends"), [(None, (TEXT_END,)), ("<|im_end|>", (IM_END,)), ("none", ())]
)
def test_a_built_corpus_ends_its_documents_with_the_token_in_its_manifest(tmp_path, eod, ends):
    tokenizer = write_folder(tmp_path)
    (tmp_path / "text.txt").write_text("the user and the assistant " * 40)
    output = tmp_path / "corpus"
    build(
        BuildOptions(
            inputs=(tmp_path / "text.txt",), output=output, tokenizer=str(tokenizer), eod=eod
        )
    )
    found = opened(source="indexed", path=str(output), split=[1, 0, 0])
    assert found == SpecialTokens(ends=ends)


MODEL = "org/tiny"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Fills the cache with files of a model."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))

    def fill(files, unknown=None):
        missing = tuple({*BESIDE} - {*files, unknown})
        fill_cache(tmp_path / "home", MODEL, FIRST, files, missing=missing)

    return fill


def test_a_file_a_folder_and_a_model_of_the_hub_name_the_same_tokenizer(cached, tmp_path):
    content = make_tokenizer().to_str().encode()
    cached({"tokenizer.json": content})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_bytes(content)
    for text in ("mine", "mine/tokenizer.json", MODEL):
        name, path = find_tokenizer(text)
        assert path.read_bytes() == content
        assert name == (f"{MODEL}@{FIRST}" if text == MODEL else text)
    for text in ("mine", "mine/tokenizer.json", f"{MODEL}@{FIRST}"):
        assert tokenizer_path(text).read_bytes() == content


@pytest.mark.parametrize("find", [find_tokenizer, tokenizer_path])
def test_a_folder_without_a_tokenizer_is_refused(cached, tmp_path, find):
    cached({})
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match=r"mine has no tokenizer\.json") as refused:
        find("mine")
    assert "save_pretrained" in refused.value.remedy


def test_a_setting_names_a_model_with_its_commit(cached):
    cached({"tokenizer.json": b"{}"})
    with pytest.raises(UsageError) as refused:
        tokenizer_path(MODEL)
    assert refused.value.keys == ("data.tokenizer",)
    assert refused.value.remedy == f"data.tokenizer={MODEL}@{FIRST}"


def test_a_chat_template_is_found_beside_a_tokenizer_of_the_hub(cached, tmp_path):
    write_folder(tmp_path, CHATML)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cached(files)
    path = tokenizer_path(f"{MODEL}@{FIRST}")
    assert read_chat_template(path.parent) == read_chat_template(tmp_path)
    assert read_chat_template(path.parent) is not None


@pytest.mark.parametrize("file", BESIDE)
def test_a_file_beside_a_tokenizer_that_may_exist_is_not_left_out_offline(cached, file):
    cached({"tokenizer.json": b"{}"}, unknown=file)
    with pytest.raises(UsageError, match=file):
        tokenizer_path(f"{MODEL}@{FIRST}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bpe", "--train-bpe 8192"),
        ("Byte", "data.tokenizer=bytes"),
        ("char", "data.tokenizer=chars"),
    ],
)
def test_a_word_for_a_kind_of_tokenizer_is_answered_with_its_setting(cached, name, meant):
    cached({})
    with pytest.raises(UsageError, match=f"{name} is not a tokenizer") as refused:
        tokenizer_path(name)
    assert refused.value.keys == ("data.tokenizer",)
    assert meant in refused.value.remedy


def test_a_folder_may_have_the_name_of_a_kind_of_tokenizer(cached, tmp_path):
    cached({})
    (tmp_path / "bpe").mkdir()
    write_folder(tmp_path / "bpe")
    assert tokenizer_path("bpe") == Path("bpe/tokenizer.json")
