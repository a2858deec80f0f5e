import huggingface_hub.constants as constants
import pytest
import yaml

from hub_files import FIRST, as_json, fill_cache
from rampcli import llm
from rampcli.checkpoint.starting_weights import check_starting_weights
from rampcli.errors import UsageError
from rampcli.models.huggingface_config import to_huggingface
from rampcli.settings.model import ModelConfig
from rampcli.weights.import_model import import_model

MODEL = "org/tiny"
SHAPE = ModelConfig(num_layers=1, hidden_size=32, huggingface_type="mistral")
CONFIG = as_json(to_huggingface(SHAPE, sequence_length=32, dtype="float32"))
FILES = {"config.json": CONFIG, "model.safetensors": b""}


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))

    def fill(files, *missing):
        fill_cache(tmp_path / "home", MODEL, FIRST, files, missing=missing)

    return fill


def test_an_imported_model_of_the_hub_is_named_by_its_commit(cached, tmp_path):
    cached(FILES)
    file = tmp_path / "mine" / "model" / "tiny.yaml"
    settings = import_model(MODEL, file)
    assert yaml.safe_load(file.read_text()) == settings
    assert file.read_text().startswith(f"# {MODEL}@{FIRST}, with")
    assert settings["init_from"] == f"{MODEL}@{FIRST}"
    assert settings["huggingface_type"] == "mistral"


def test_an_imported_folder_is_named_by_its_absolute_path(cached, tmp_path):
    cached({})
    (tmp_path / "theirs").mkdir()
    for name, content in FILES.items():
        (tmp_path / "theirs" / name).write_bytes(content)
    settings = import_model("theirs", tmp_path / "mine" / "model" / "tiny.yaml")
    assert settings["init_from"] == str(tmp_path / "theirs")


@pytest.mark.parametrize("text", [MODEL, "org/other", "./nowhere"])
def test_nothing_is_written_for_a_model_that_cannot_be_had(cached, tmp_path, text):
    cached({"config.json": CONFIG})  # its weights are not in the cache
    with pytest.raises(UsageError):
        import_model(text, tmp_path / "mine" / "model" / "tiny.yaml")
    assert not (tmp_path / "mine").exists()


@pytest.fixture
def config():
    config = llm.llama3_tiny.pretrain_recipe()
    config.model = ModelConfig(num_layers=1, hidden_size=32, init_from=f"{MODEL}@{FIRST}")
    return config


def test_a_run_starts_from_the_commit_of_a_model_that_has_its_shape(cached, config, tmp_path):
    cached(FILES)
    folder = check_starting_weights(config)
    assert folder is not None
    assert folder.name == FIRST
    assert folder.is_relative_to(tmp_path / "home")
    config.model.num_layers = 2
    with pytest.raises(UsageError) as refused:
        check_starting_weights(config)
    assert refused.value.remedy == "model.num_layers=1"


def test_a_run_does_not_start_from_a_model_without_its_commit(cached, config):
    cached(FILES)
    config.model.init_from = MODEL
    with pytest.raises(UsageError, match="does not exist") as refused:
        check_starting_weights(config)
    assert f"rampcli import {MODEL} conf/model/" in refused.value.remedy
