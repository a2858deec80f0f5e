import json
import os
from pathlib import Path

import pytest

from rampcli.config.layers import build
from rampcli.config.schema import Config, ModelConfig
from rampcli.errors import UsageError
from rampcli.models.huggingface_config import (
    SHAPE,
    as_settings,
    check_init_from,
    read_config,
    to_huggingface,
)

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
        ({"model_type": "llama", "num_attention_heads": 4}, "has no num_hidden_layers"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3"}}, "has no 'factor'"),
        *(
            (LLAMA | {key: value}, key)
            for key in SIZES
            for value in (0, -5, 1.5, True, "4", None, [4], 10**19)
        ),
        *((LLAMA | {key: value}, key) for key in RATES for value in (0, -1, "1", None, [1], 1e300)),
        *(
            (LLAMA | {key: value}, key)
            for key in ("attention_bias", "tie_word_embeddings")
            for value in (0, "true", None)
        ),
        (json.dumps(LLAMA).replace("10000.0", "NaN"), "NaN is not JSON"),
        (json.dumps(LLAMA).replace("10000.0", "1e999"), "rope_theta is not a number above 0"),
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


def test_imported_settings_fit_the_schema_unchanged(folder):
    settings = as_settings(read_config(folder(LLAMA)))
    config = build({f"model.{name}": value for name, value in settings.items()}, place=lambda _: "")
    assert as_settings(config.model) == settings


def test_equivalent_settings_do_not_differ_and_all_differences_are_suggested(folder):
    path = folder(LLAMA)
    (path / "model.safetensors").touch()
    config = Config(
        model=ModelConfig(
            num_query_groups=2, head_size=32, rotary_low_freq_factor=2.0, init_from=str(path)
        )
    )
    check_init_from(config)
    for name in SHAPE:
        assert hasattr(config.model, name)
    config.model.ffn_hidden_size, config.model.qk_norm = 5, True
    with pytest.raises(
        UsageError, match=r"differs from model\.ffn_hidden_size=5, model\.qk_norm=true"
    ) as refused:
        check_init_from(config)
    assert refused.value.remedy == "model.ffn_hidden_size=344 model.qk_norm=false"
