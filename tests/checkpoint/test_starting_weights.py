"""Runs start from the weights of another run or of a folder, and may take their model from it."""

from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from chat_folders import CHATML, write_folder
from hub_files import FIRST, fill_cache
from model_folders import MODEL, write_model
from rampcli import llm
from rampcli.checkpoint.starting_weights import check_starting_weights, with_model_of_folder
from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import COMMAND_LINE, PYTHON, Precedence, edited_stack
from rampcli.errors import ErrorReport, UsageError
from rampcli.files.guarded_folder import write_json
from rampcli.launch.run import write_run_files
from rampcli.models.huggingface_config import SHAPE_SETTINGS, to_huggingface
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST
from rampcli.settings.model import ModelConfig
from run_files import manifest

WORDS = ("data.path=my.jsonl",)


@pytest.fixture
def config(tmp_path):
    config = llm.llama3_tiny.pretrain_recipe()
    config.run_dir, config.model.vocab_size = str(tmp_path / "run"), 256
    write_run_files(RunDirectory(tmp_path / "run"), resolve(config), [])
    config.model.init_from = config.run_dir
    return config


def refusal(config):
    with pytest.raises(UsageError) as refused:
        check_starting_weights(config)
    return refused.value


def test_a_run_without_a_checkpoint_is_refused(config):
    refused = refusal(config)
    assert refused.keys == ("model.init_from",)
    assert "model.init_from=null" in refused.remedy


@pytest.mark.parametrize("inside", ["config.yaml", "checkpoints"])
def test_a_path_inside_a_run_is_refused_with_the_run(config, inside):
    run_dir = config.model.init_from
    config.model.init_from = f"{run_dir}/{inside}"
    assert refusal(config).remedy.startswith(f"model.init_from={run_dir},")


def test_a_run_of_another_shape_is_refused_with_its_settings(config):
    folder = RunDirectory(Path(config.model.init_from)).checkpoint_folder(1)
    folder.mkdir()
    write_json(folder / MANIFEST, manifest(step=1, consumed_samples=8, files={}))
    check_starting_weights(config)
    config.model.ffn_hidden_size = 64
    assert refusal(config).remedy == "model.ffn_hidden_size=224"
    config.model.ffn_hidden_size, config.model.qk_norm = 224, True
    assert refusal(config).remedy == "model.qk_norm=false"


@pytest.mark.parametrize("said", [True, False])
def test_a_sample_longer_than_the_learned_positions_is_refused_with_their_number(tmp_path, said):
    small = ("model.num_layers=1", "model.hidden_size=32", "model.num_attention_heads=4")
    config = compose("model=gpt3_126m", *small, f"model.init_from={tmp_path}")
    content = to_huggingface(config.model, sequence_length=64, dtype="float32")
    if not said:
        del content["n_positions"]
    write_json(tmp_path / "config.json", content)
    (tmp_path / "model.safetensors").touch()
    config.data.sequence_length = longest = 64 if said else 1024
    check_starting_weights(config)
    config.data.sequence_length += 1
    assert refusal(config).remedy == f"data.sequence_length={longest}"


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model")


def laid_over(*words, factory="fine_tune"):
    """Returns the layers of a recipe and words, with those of the folder, and the errors."""
    report = ErrorReport()
    stack = apply_overrides(llm.from_factory(factory), [*WORDS, *words], report=report)
    return with_model_of_folder(stack, report=report), report.errors


def shape_of(model: ModelConfig) -> dict:
    return {name: getattr(model, name) for name in SHAPE_SETTINGS}


@pytest.mark.parametrize(
    ("factory", "choice"), [("fine_tune", []), ("llama3_8b", ["model=from_folder", "data=pairs"])]
)
def test_a_folder_gives_the_settings_of_its_model_and_its_tokenizer(folder, factory, choice):
    stack, errors = laid_over(f"model.init_from={folder}", *choice, factory=factory)
    assert errors == []
    config = stack.config()
    assert shape_of(config.model) == shape_of(MODEL)
    assert config.data.tokenizer == str(folder)
    assert config.data.response_end is None
    assert stack.entry("model.num_layers").place == f"{folder}/config.json"
    assert stack.entry("data.tokenizer").place == f"{folder}/tokenizer.json"


def test_a_response_ends_with_the_end_that_the_folder_names(folder):
    write_folder(folder, CHATML)
    stack, _ = laid_over(f"model.init_from={folder}")
    assert stack.config().data.response_end == "<|eot_id|>"
    assert stack.entry("data.response_end").place == f"{folder}/tokenizer_config.json"
    stack, _ = laid_over(f"model.init_from={folder}", "data=text")
    assert stack.config().data.response_end is None


def test_words_apply_over_the_folder(folder):
    words = ["model.num_layers=2", "data.tokenizer=bytes", "data.response_end='.'"]
    config = laid_over(f"model.init_from={folder}", *words)[0].config()
    assert shape_of(config.model) == shape_of(replace(MODEL, num_layers=2))
    assert (config.data.tokenizer, config.data.response_end) == ("bytes", ".")


def test_python_sets_the_folder_as_the_command_line_does(folder):
    config = llm.fine_tune.pretrain_recipe()
    config.data.path, config.model.init_from = "my.jsonl", str(folder)
    report = ErrorReport()
    stack = edited_stack(config, PYTHON, Precedence.USER, report=report)
    ours = with_model_of_folder(stack, report=report).values()
    assert report.errors == []
    assert ours == laid_over(f"model.init_from={folder}")[0].values()


def test_other_choices_of_a_model_leave_the_folder_unread():
    stack, errors = laid_over("model.init_from=nowhere", factory="llama3_tiny")
    assert errors == []
    assert stack.entry("model.num_layers").place.startswith("model/llama3_tiny.yaml:")


def test_a_folder_without_a_model_or_a_tokenizer_is_refused_before_anything_starts(
    folder, tmp_path
):
    _, (missing,) = laid_over()
    assert missing.keys == ("model.init_from",)
    assert missing.set_by == ("model.init_from (model/from_folder.yaml:2)",)
    _, (nowhere,) = laid_over("model.init_from=nowhere")
    assert nowhere.remedy.startswith(missing.remedy)
    (tmp_path / "config.yaml").touch()
    _, (of_a_run,) = laid_over(f"model.init_from={tmp_path}")
    assert of_a_run.remedy == f"rampcli export {tmp_path} out, then model.init_from=out"
    assert of_a_run.set_by == (f"model.init_from={tmp_path} ({COMMAND_LINE})",)
    (folder / "tokenizer.json").unlink()
    _, (no_tokenizer,) = laid_over(f"model.init_from={folder}")
    assert no_tokenizer.message == f"{folder} has no tokenizer.json"
    assert laid_over(f"model.init_from={folder}", "data.tokenizer=bytes")[1] == []
    assert laid_over(f"model.init_from={folder}", "data=mock")[1] == []


def test_a_model_of_the_hub_gives_its_settings_and_its_tokenizer(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    write_folder(folder, CHATML)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    missing = ("generation_config.json", "special_tokens_map.json", "chat_template.jinja")
    fill_cache(tmp_path / "home", "org/tiny", FIRST, files, missing=missing)
    name = f"org/tiny@{FIRST}"
    stack, errors = laid_over(f"model.init_from={name}")
    assert errors == []
    assert shape_of(stack.config().model) == shape_of(MODEL)
    assert stack.config().data.tokenizer == name
    assert stack.config().data.response_end == "<|eot_id|>"
