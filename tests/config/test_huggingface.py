import json

import pytest

from rampcli.config.huggingface import SHAPE, as_settings, check_init_from, read_config, to_huggingface
from rampcli.config.schema import Config, ModelConfig
from rampcli.config.values import build
from rampcli.errors import UsageError

LLAMA = to_huggingface(ModelConfig(num_query_groups=2), sequence_length=64, dtype="float32")
QWEN3 = to_huggingface(ModelConfig(qk_norm=True), sequence_length=64, dtype="float32")
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256}


@pytest.fixture
def folder(tmp_path):
    def write(told: dict | str):
        (tmp_path / "config.json").write_text(told if isinstance(told, str) else json.dumps(told))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("{", "cannot read"),
        ("[1]", "is of model_type None"),
        ({"model_type": "bert"}, "one of llama, mistral, qwen3, gpt2"),
        ({"model_type": "llama", "num_attention_heads": 4}, "has no 'num_hidden_layers'"),
        (LLAMA | {"hidden_act": "gelu"}, "has hidden_act=gelu; this decoder has silu only"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary positions of type 'yarn'"),
        (LLAMA | {"mlp_bias": True}, "attention_bias and mlp_bias differ"),
        (QWEN3 | {"use_sliding_window": True}, "use_sliding_window=True"),
        (GPT2 | {"activation_function": "relu"}, "activation_function=relu"),
    ],
)
def test_a_model_that_this_decoder_is_not_is_refused(folder, told, said):
    with pytest.raises(UsageError) as refused:
        read_config(folder(told))
    assert said in str(refused.value)


def test_what_transformers_4_and_5_call_the_same_is_read_as_the_same(folder):
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    old = read_config(folder(LLAMA | {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", **scaling}}))
    new = dict(LLAMA)
    del new["rope_theta"]
    assert read_config(folder(new | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, **scaling}})) == old
    assert (old.rotary_base, old.rotary_scale_factor) == (500_000.0, 8.0)


def test_what_is_imported_is_taken_by_the_schema_as_it_stands(folder):
    settings = as_settings(read_config(folder(LLAMA)))
    config = build({f"model.{name}": value for name, value in settings.items()}, place=lambda _: "")
    assert as_settings(config.model) == settings


def test_settings_that_mean_the_same_are_no_difference_and_all_that_differ_are_offered(folder):
    path = folder(LLAMA)
    (path / "model.safetensors").touch()
    config = Config(model=ModelConfig(num_query_groups=2, head_size=32, rotary_low_freq_factor=2.0, init_from=str(path)))
    check_init_from(config)
    for name in SHAPE:
        assert hasattr(config.model, name)
    config.model.ffn_hidden_size, config.model.qk_norm = 5, True
    with pytest.raises(UsageError, match=r"another model than model\.ffn_hidden_size=5, model\.qk_norm=true") as refused:
        check_init_from(config)
    assert refused.value.remedy == "model.ffn_hidden_size=344 model.qk_norm=false"
