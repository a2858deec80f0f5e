from shutil import copy

import pytest
import yaml

from docs.places import ROOT


def test_a_hidden_value_of_a_launcher_has_its_references_resolved_among_those_of_its_section(
    succeed, tmp_path
):
    for name in ("training", "exp"):
        (tmp_path / "tree" / name).mkdir(parents=True)
    copy(ROOT / "tests/words/nemo_files/launcher.yaml", tmp_path / "tree/training")
    (tmp_path / "tree/conf.yaml").write_text("defaults:\n- training: launcher\n")
    ours = "model: {max_position_embeddings: 77, ffn_hidden_size: 99, hidden_size: 128}"
    (tmp_path / "tree/exp/ours.yaml").write_text(f"# @package _global_\n{ours}\n")
    tree = ("--config-dir", "tree", "--config-name", "conf", "+exp=ours")
    variables = ("+data_dir=/data", "+base_results_dir=/runs")
    shown = yaml.safe_load(succeed("plan", *tree, *variables, "--cfg", "job", "--resolve"))
    names = ("max_position_embeddings", "ffn_hidden_size", "hidden_size")
    assert [shown["model"][name] for name in names] == [77, 99, 128]
    assert [shown["training"]["model"][name] for name in names] == [1024, 1536, 512]


@pytest.mark.parametrize("value", ["{hidden_size: '${model.hidden_size}'}", "${model}"])
@pytest.mark.parametrize("options", [(), ("--resolve",), ("--resolve", "--package", "mine")])
def test_a_section_of_the_user_is_shown_as_it_is_written_or_with_its_values(
    succeed, value, options
):
    words = ("-f", "llama3_tiny", f"+mine={value}", "seed=${mine.hidden_size}", "--cfg", "job")
    shown = yaml.safe_load(succeed("plan", *words, *options))
    mine = shown if "--package" in options else shown["mine"]
    if options:
        model = yaml.safe_load(succeed("plan", *words, "--package", "model"))
        assert mine["hidden_size"] == model["hidden_size"]
        assert mine.items() <= model.items()
    else:
        assert mine == yaml.safe_load(value)
