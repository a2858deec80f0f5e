import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from models.families import FAMILIES
from rampcli.config.layers import build_config
from rampcli.errors import UsageError
from rampcli.models.huggingface_config import (
    KEYS,
    SHAPE_SETTINGS,
    as_settings,
    check_model_folder,
    check_same_model,
    read_config,
    to_huggingface,
)
from rampcli.settings.architectures import model_type
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig

LLAMA = to_huggingface(ModelConfig(num_query_groups=2), sequence_length=64, dtype="float32")
QWEN3 = to_huggingface(ModelConfig(qk_norm=True), sequence_length=64, dtype="float32")
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256}

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)
RATES = ("rms_norm_eps", "rope_theta", "initializer_range")


@pytest.fixture
def folder(tmp_path):
    def write(told: dict | str):
        (tmp_path / "config.json").write_text(told if isinstance(told, str) else json.dumps(told))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("{", "is damaged"),
        ("[1]", "it is not a mapping"),
        ("[" * 100_000, "nested too deeply"),
        (" " * 2_000_000, "larger than"),
        ({}, "has the unsupported model_type None"),
        ({"model_type": ["llama"]}, "model_type is not text"),
        ({"model_type": "bert"}, "one of llama, mistral, qwen3, gpt2"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3"}}, "has no 'factor'"),
        *(
            (LLAMA | {key: value}, key)
            for key in SIZES
            for value in (0, -5, 1.5, True, "4", None, [4], 10**19)
        ),
        ({"model_type": "gpt2", "hidden_size": 0}, "n_embd"),
        *((LLAMA | {key: value}, key) for key in RATES for value in (0, -1, "1", None, [1], 1e300)),
        *(
            (LLAMA | {key: value}, key)
            for key in ("attention_bias", "tie_word_embeddings")
            for value in (0, "true", None)
        ),
        (json.dumps(LLAMA).replace("10000.0", "NaN"), "NaN is not JSON"),
        (json.dumps(LLAMA).replace("10000.0", "1e999"), "1e999 is too large a number"),
        (LLAMA | {"head_dim": 3}, "rotary positions need an even size"),
        (LLAMA | {"num_key_value_heads": 3}, "does not divide into model.num_query_groups=3"),
        (GPT2 | {"n_embd": 65}, "does not divide into model.num_attention_heads=4"),
        (LLAMA | {"hidden_act": [[]]}, "hidden_act is not text"),
        (LLAMA | {"hidden_act": "gelu"}, "has hidden_act=gelu; this decoder supports silu only"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rotary positions of type 'yarn'",
        ),
        (LLAMA | {"mlp_bias": True}, "attention_bias and mlp_bias differ"),
        (QWEN3 | {"use_sliding_window": True}, "use_sliding_window=True"),
        (QWEN3 | {"attention_bias": True}, "attention_bias=True"),
        (GPT2 | {"activation_function": "relu"}, "activation_function=relu"),
    ],
)
def test_a_model_that_the_decoder_cannot_represent_is_refused(folder, told, message):
    with pytest.raises(UsageError) as refused:
        read_config(folder(told))
    assert message in str(refused.value)


def test_a_config_that_is_not_a_regular_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for folder in (tmp_path, tmp_path / "nowhere", Path("x\0y"), tmp_path / "config.json"):
        with pytest.raises(UsageError, match="cannot read"):
            read_config(folder)


def test_an_invalid_imported_setting_is_refused_with_its_file(folder):
    path = folder(LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 2})
    with pytest.raises(UsageError, match="does not divide") as refused:
        read_config(path)
    assert refused.value.set_by == (str(path / "config.json"),)


def test_configs_of_transformers_4_and_5_give_the_same_settings(folder):
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = read_config(
        folder(
            LLAMA | {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", **scaling}}
        )
    )
    new = dict(LLAMA)
    del new["rope_theta"]
    assert (
        read_config(
            folder(
                new
                | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, **scaling}}
            )
        )
        == old
    )
    assert (old.rotary_base, old.rotary_scale_factor) == (500_000.0, 8.0)
    unset = {"rope_type": "llama3", "rope_theta": None, **scaling}
    beside = {"rope_theta": 500_000.0, "rope_scaling": None, "rope_parameters": unset}
    assert read_config(folder(LLAMA | beside)) == old


CLASSES = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen3": Qwen3Config,
    "gpt2": GPT2Config,
}
OTHER_VALUES = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_attention_heads": 64,
    "vocab_size": 128,
    "max_position_embeddings": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "sliding_window": 7,
    "rms_norm_eps": 1e-3,
    "rope_theta": 7.0,
    "initializer_range": 0.5,
    "n_layer": 2,
    "n_embd": 96,
    "n_head": 4,
    "n_inner": 5,
    "layer_norm_epsilon": 1e-3,
}


def written_out(kind: str, told: dict) -> dict:
    """Returns a config.json that transformers wrote after it had read `told`."""
    return CLASSES[kind](**told).to_dict()


@pytest.mark.parametrize("kind", CLASSES)
def test_keys_that_are_left_out_mean_what_transformers_takes_them_for(folder, kind):
    """Each alone, and all of them."""
    full = {key: OTHER_VALUES[key] for key in KEYS[kind] if key in OTHER_VALUES}
    full |= {"tie_word_embeddings": kind != "gpt2"}
    files = [{}, *({other: full[other] for other in full if other != key} for key in full)]
    scaling = {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 2}
    if kind == "llama":
        files += [{"attention_bias": True, "mlp_bias": True}, {"rope_scaling": scaling}]
    for told in files:
        read = read_config(folder({"model_type": kind, **told}))
        written = read_config(folder(written_out(kind, told)))
        check_same_model(read, written, name="theirs")
        assert read.init_std == written.init_std


@pytest.mark.parametrize("kind", CLASSES)
def test_each_default_is_that_of_the_class_in_transformers(kind):
    theirs = written_out(kind, {})
    theirs |= {"rope_theta": theirs.get("rope_parameters", {}).get("rope_theta")}
    ours = {name: key.default for name, key in KEYS[kind].items() if key.default is not None}
    assert {name: theirs[name] for name in ours} == ours


@pytest.mark.parametrize("key", ["sliding_window", "head_dim"])
def test_an_explicit_null_is_not_the_default_of_a_key(folder, key):
    told = {"num_attention_heads": 16, "hidden_size": 512, key: None}
    read = read_config(folder({"model_type": "mistral", **told}))
    theirs = MistralConfig(**told)
    assert read.sliding_window == theirs.sliding_window
    assert read.key_heads == theirs.num_key_value_heads
    assert read.head_width == theirs.head_dim


def test_the_names_of_other_families_are_read_for_gpt2_as_transformers_reads_them(folder):
    told = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    read = read_config(folder({"model_type": "gpt2", **told}))
    assert read == read_config(folder(written_out("gpt2", told)))
    assert (read.num_layers, read.hidden_size, read.num_attention_heads) == (2, 64, 4)


def test_biases_that_the_class_of_mistral_does_not_have_are_not_read(folder):
    told = {"model_type": "mistral", "attention_bias": True, "mlp_bias": True}
    assert not read_config(folder(told)).bias


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (FAMILIES["llama2"], "llama"),
        (FAMILIES["mistral"], "mistral"),
        (replace(FAMILIES["llama2"], huggingface_type="mistral"), "mistral"),
        (
            replace(FAMILIES["llama2"], hidden_size=50, num_attention_heads=3, head_size=4),
            "mistral",
        ),
        (FAMILIES["llama with biases"], "llama"),
        (FAMILIES["qwen3"], "qwen3"),
        (FAMILIES["gpt3"], "gpt2"),
    ],
)
def test_an_exported_config_is_accepted_by_its_class_and_read_back_as_the_same(
    folder, settings, kind
):
    told = to_huggingface(settings, sequence_length=64, dtype="float32")
    assert told["model_type"] == kind
    for content in (told, written_out(kind, told)):
        read = read_config(folder(content | {"model_type": kind}))
        check_same_model(read, settings, name="theirs")
        assert model_type(read) == kind


def test_imported_settings_fit_the_schema_unchanged(folder):
    settings = as_settings(read_config(folder(LLAMA)))
    config = build_config({f"model.{name}": value for name, value in settings.items()}, place="")
    assert as_settings(config.model) == settings


def test_equivalent_settings_do_not_differ_and_all_differences_are_suggested(folder):
    path = folder(LLAMA)
    config = Config(model=ModelConfig(num_query_groups=2, head_size=32, rotary_low_freq_factor=2.0))
    check_model_folder(config, path, name="theirs")
    for name in SHAPE_SETTINGS:
        assert hasattr(config.model, name)
    config.model.ffn_hidden_size, config.model.qk_norm = 5, True
    with pytest.raises(
        UsageError, match=r"differs from model\.ffn_hidden_size=5, model\.qk_norm=true"
    ) as refused:
        check_model_folder(config, path, name="theirs")
    assert refused.value.remedy == "model.ffn_hidden_size=344 model.qk_norm=false"
