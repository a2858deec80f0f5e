from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from chat_folders import CHATML, make_tokenizer, write_folder
from hub_files import FIRST, fill_cache
from rampcli.data.chat_template import read_chat_template
from rampcli.data.tokenizer_path import BESIDE, find_tokenizer, tokenizer_path
from rampcli.errors import UsageError

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
