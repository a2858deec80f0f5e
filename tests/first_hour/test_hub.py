"""A newcomer comes with a model of the Hugging Face hub, or with a folder that holds one."""

import json

import pytest

from hub_files import FIRST, SECOND, fill_cache, serve_hub
from once import make_once
from rampcli.data.tokenizer import train_bpe

MODEL = "org/tiny"
PINNED = f"{MODEL}@{FIRST}"
TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
SHORT = (
    "name=mine",
    "model=tiny",
    "data.sequence_length=16",
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "trainer.num_nodes=1",
    "trainer.val_samples=4",
    "trainer.accelerator=cpu",
)


def save_model(folder):
    """Saves a Mistral without a window, whose width is not a multiple of its heads."""
    from transformers import MistralConfig, MistralForCausalLM  # imports take seconds

    config = MistralConfig(
        num_hidden_layers=1,
        hidden_size=50,
        intermediate_size=64,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=4,
        vocab_size=300,
        sliding_window=None,
        max_position_embeddings=16,
    )
    MistralForCausalLM(config).save_pretrained(folder)
    train_bpe(iter([TEXT]), 300).save(str(folder / "tokenizer.json"))
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")


@pytest.fixture
def model(tmp_path_factory):
    """The folder of a model."""
    return make_once(tmp_path_factory, "model_of_the_hub", save_model)


@pytest.fixture
def files(model):
    return {path.name: path.read_bytes() for path in model.iterdir()}


@pytest.fixture
def text(newcomer):
    (newcomer.folder / "text.txt").write_text(TEXT)
    return newcomer.folder / "text.txt"


def test_a_model_of_the_hub_is_imported_trained_resumed_and_exported(newcomer, files, text):
    """Only what is needed is downloaded, and a resume reads the same commit."""
    with serve_hub() as hub:
        hub.models[MODEL] = {FIRST: files}
        home = newcomer.folder / "home"
        online = {"HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        build = ("data", "build", text, "--output", "corpus")
        newcomer.succeed(*build, "--tokenizer", MODEL, **online)
        newcomer.succeed("import", MODEL, "conf/model/tiny.yaml", **online)
        wanted = {f"/{MODEL}/resolve/main/{file}.json" for file in ("tokenizer", "config")}
        assert downloaded(hub) == wanted
        hub.asked.clear()
        hub.models[MODEL][SECOND] = {}  # main is another commit from now on
        train = ("pretrain", "--factory", "llama3_tiny", "--config-dir", "conf", *SHORT)
        train = (*train, "data=indexed", "data.path=corpus", "data.split=[80,20,0]")
        newcomer.succeed(*train, "trainer.max_steps=1", **online)
        assert downloaded(hub) == {f"/{MODEL}/resolve/{FIRST}/model.safetensors"}
        hub.asked.clear()
        newcomer.succeed(*train, "trainer.max_steps=2", **online)
        assert hub.asked == []
    assert json.loads((newcomer.folder / "corpus.json").read_text())["tokenizer"] == PINNED
    assert PINNED in (newcomer.folder / "runs/mine/config.yaml").read_text()
    newcomer.succeed("export", "runs/mine", "out")
    assert not list(newcomer.folder.glob("**/*.bin"))[1:]  # corpus.bin only
    _check_class(newcomer.folder / "out")


def downloaded(hub):
    """Returns the paths of the files that were downloaded."""
    return {path for method, path in hub.asked if method == "GET" and "/resolve/" in path}


def _check_class(folder):
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded).__name__ == "MistralForCausalLM"
    assert loaded.config.sliding_window is None


def test_a_folder_and_a_cached_model_are_used_without_a_connection(newcomer, files, model, text):
    home = newcomer.folder / "home"
    fill_cache(home, MODEL, FIRST, files)
    offline = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    build = ("data", "build", text, "--output")
    of_hub = newcomer.succeed(*build, "of_hub", "--tokenizer", f"{MODEL}@main", **offline)
    assert f"tokenizer {PINNED} with" in of_hub
    newcomer.succeed(*build, "of_folder", "--tokenizer", model, **offline)
    corpora = [newcomer.folder / f"{name}.bin" for name in ("of_hub", "of_folder")]
    assert corpora[0].read_bytes() == corpora[1].read_bytes()
    again = newcomer.succeed(*build, "of_hub", "--tokenizer", MODEL, **offline)
    assert "already exists, from the same inputs and options" in again
    newcomer.succeed("import", model, "conf/model/folder.yaml", **offline)
    said = newcomer.succeed("import", MODEL, "conf/model/hub.yaml", **offline)
    assert f"a run will download the weights of {PINNED}" in said
    words = ("data=text", "data.path=text.txt", f"data.tokenizer={MODEL}")
    said = newcomer.refused("pretrain", "--factory", "llama3_tiny", *words, **offline)
    assert f"try:    data.tokenizer={PINNED}" in said
    assert not (newcomer.folder / "runs").exists()


def test_a_name_that_is_neither_here_nor_cached_is_one_message(newcomer, text):
    offline = {"HF_HOME": str(newcomer.folder / "home"), "HF_HUB_OFFLINE": "1"}
    for name, words in {
        "gpt2": ("data", "build", text, "--output", "corpus", "--tokenizer", "gpt2"),
        "org/tny": ("import", "org/tny", "conf/model/mine.yaml"),
    }.items():
        said = newcomer.refused(*words, **offline)
        assert said.startswith(f"error: {name} is not a path here; ")
        assert "HF_HUB_OFFLINE is set" in said
    assert [path.name for path in newcomer.folder.iterdir()] == ["text.txt"]
