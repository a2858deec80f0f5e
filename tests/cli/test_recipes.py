import json
import re
import shlex

import pytest

from model_folders import write_model
from rampcli import llm
from rampcli.cli import console
from rampcli.errors import shown


def test_every_recipe_has_a_row_that_fits_a_hundred_columns(succeed, monkeypatch):
    monkeypatch.setattr(console, "PIPE_WIDTH", 100)
    header, *rows, _, hint = succeed("recipes").splitlines()
    assert header.split() == ["recipe", "parameters", "sequence", "batch", "GPUs", "source"]
    assert [row.split()[0] for row in rows] == llm.recipe_names()
    assert max(map(len, rows)) <= 100
    assert "rampcli recipes NAME" in hint
    (row,) = [row for row in rows if row.startswith("gpt3_5b ")]
    cells = ["gpt3_5b", "5.05B", "2048", "256", "to", "2048", "128", "NeMo-Framework-Launcher"]
    assert row.split() == cells


def test_json_holds_the_facts_of_every_recipe_and_nothing_else_is_printed(json_of):
    facts = {fact["name"]: fact for fact in json_of("recipes")}
    assert list(facts) == llm.recipe_names()
    assert facts["llama3_8b"].pop("description").startswith("Pretrains Llama 3 8B ")
    assert facts["llama3_8b"] == {
        "name": "llama3_8b",
        "source": "NeMo, nemo/collections/llm/recipes/llama3_8b.py",
        "parameters": 8_030_261_248,
        "vocab_size": 128_256,
        "sequence_length": 8192,
        "global_batch_size": 512,
        "rampup_batch_size": None,
        "num_nodes": 1,
        "gpus_per_node": 8,
    }


def test_a_recipe_is_shown_with_its_options_and_its_own_settings(succeed, json_of):
    found = json_of("recipes", "qwen3_14b")
    assert found["options"] == {
        "model": "qwen3_14b",
        "data": "mock",
        "hardware": "h100_bf16",
        "batch": "nemo_qwen3",
        "optim": "nemo_adam",
        "launch": "local",
        "rl": "none",
    }
    assert found["settings"] == {
        "name": "qwen3_14b",
        "trainer.num_nodes": 1,
        "trainer.devices": 8,
        "parallel.tensor_parallel_size": 8,
        "optim.warmup_steps": 500,
    }
    printed = succeed("recipes", "qwen3_14b")
    for group, option in found["options"].items():
        assert f"\n  {group}={option}\n" in printed
    for key, value in found["settings"].items():
        assert f"\n  {key}={shown(value)}\n" in printed
    assert found["description"] in printed
    assert printed.endswith("\n  rampcli pretrain --factory qwen3_14b\n")


WORDS = ("model.num_layers=4", "trainer.max_samples=400", "model.rampup_batch_size=[8,8,160]")


def test_a_recipe_is_shown_with_the_settings_that_were_typed(succeed, json_of):
    found = json_of("recipes", "llama3_tiny", *WORDS)
    plan = json_of("plan", "-f", "llama3_tiny", *WORDS)
    for name in ("parameters", "embedding_parameters"):
        assert found[name] == plan[name]
    assert found["tokens"] == 400 * plan["sequence_length"]
    assert (found["rampup_batch_size"], found["overrides"]) == ([8, 8, 160], [*WORDS])
    printed = succeed("recipes", "llama3_tiny", *WORDS)
    (size,) = re.findall(r"^model +(.*)$", printed, re.MULTILINE)
    assert f"\nmodel: {size}\n" in succeed("plan", "-f", "llama3_tiny", *WORDS)
    _, _, *command = shlex.split(printed.splitlines()[-1])
    assert json_of("plan", *command) == plan
    assert "\nyour settings\n  model.num_layers=4\n" in printed


def test_a_recipe_that_needs_a_file_is_shown_with_its_tokens_once_the_file_is_typed(
    json_of, tmp_path
):
    (tmp_path / "my.txt").write_text("a text" * 1000, encoding="utf-8")
    without = json_of("recipes", "shakespeare_char")
    found = json_of("recipes", "shakespeare_char", "data.path=my.txt")
    assert (without["vocab_size"], found["vocab_size"]) == (None, 5)
    assert found["parameters"] > without["parameters"]
    assert found["command"] == without["command"].replace("FILE", "my.txt")


def test_a_recipe_that_reads_a_file_is_shown_with_the_setting_for_its_path(json_of):
    found = json_of("recipes", "shakespeare_char")
    assert found["command"] == "rampcli pretrain --factory shakespeare_char data.path=FILE"
    assert "data.path" not in found["settings"]


@pytest.mark.parametrize("name", llm.recipe_names())
def test_the_options_and_settings_shown_for_a_recipe_give_its_plan(name, json_of, tmp_path):
    pair = json.dumps({"prompt": "4 is ", "response": "even"})
    text = f"{pair}\n" * 100 if name == "fine_tune" else "a text" * 1000
    (tmp_path / "my.txt").write_text(text, encoding="utf-8")
    found = json_of("recipes", name)
    options = [f"{group}={option}" for group, option in found["options"].items()]
    settings = [f"{key}={shown(value)}" for key, value in found["settings"].items()]
    path = ["data.path=my.txt"] if "data.path=FILE" in found["command"] else []
    if "model.init_from=FOLDER" in found["command"]:
        path.append(f"model.init_from={write_model(tmp_path / 'model')}")
    again = json_of("plan", "-f", "llama3_tiny", *options, *settings, *path)
    recipe = json_of("plan", "-f", name, *path)
    del again["retuning"]  # beside the other recipe
    assert recipe.pop("retuning") is None
    assert again == recipe
