"""A run may start from the weights of another run whose model has the same shape."""

from pathlib import Path

import pytest

from rampcli import llm
from rampcli.checkpoint.starting_weights import check_starting_weights
from rampcli.config.compose import compose
from rampcli.errors import UsageError
from rampcli.guarded_folder import write_json
from rampcli.launch.run import describe
from rampcli.models.huggingface_config import to_huggingface
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST
from run_files import manifest


@pytest.fixture
def config(tmp_path):
    config = llm.llama3_tiny.pretrain_recipe()
    config.run_dir, config.model.vocab_size = str(tmp_path / "run"), 256
    describe(RunDirectory(tmp_path / "run"), resolve(config), [])
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
    assert refusal(config).remedy == "model.ffn_hidden_size=344"
    config.model.ffn_hidden_size, config.model.qk_norm = 344, True
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
