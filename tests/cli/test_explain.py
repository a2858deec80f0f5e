import json

import pytest

from rampcli import llm
from rampcli.planning.resolve import resolve
from rampcli.report.explain import explain


def test_a_setting_is_explained_in_words(succeed):
    printed = succeed(
        "explain", "--factory", "gpt3_5b", "model.global_batch_size", "data.global_batch_size=4096"
    )
    assert printed.splitlines() == [
        "model.global_batch_size",
        "  meaning     Samples per optimiser step, at the end of a ramp. `null`: derived.",
        "  value       4096",
        "  set by      data.global_batch_size=4096 (command line)",
        "  instead of  2048 (batch/nemo_gpt3.yaml:8)",
        "              null (default)",
        "  type        an integer or null",
        "  unit        samples",
        "  range       from 1",
        "  default     null",
    ]


def test_an_open_setting_is_explained_with_its_derived_value(succeed):
    printed = succeed("explain", "-f", "gpt3_5b", "trainer.accumulate_grad_batches")
    assert "  value       null, which comes to 4\n" in printed


def test_a_number_that_maxtext_derives_is_explained_with_its_value(succeed):
    printed = succeed("explain", "-f", "gpt3_5b", "global_batch_to_load")
    assert [line.split()[0] for line in printed.splitlines()] == [
        "global_batch_to_load",
        "meaning",
        "value",
        "set",
        "unit",
    ]
    assert "  value       2048\n" in printed


def test_several_settings_are_explained_in_the_given_order(succeed):
    printed = succeed(
        "explain", "-f", "gpt3_5b", "seed", "optim.lr=0.5", "optim.lr", "rampup.node_policy"
    )
    assert [block.splitlines()[0] for block in printed.split("\n\n")] == [
        "seed",
        "optim.lr",
        "rampup.node_policy",
    ]
    assert "  set by      command line\n  instead of  0.00016 (recipes/gpt3.py:" in printed


def test_a_list_that_the_shell_split_is_applied_to_the_recipe(succeed):
    printed = succeed(
        "explain", "model.rampup_batch_size", "model.rampup_batch_size=[4,", "4,", "1000]"
    )
    assert "  value       [4,4,1000]\n  set by      command line\n" in printed


def test_without_a_recipe_the_explained_one_is_named(succeed):
    with_recipe = succeed("explain", "-f", "llama3_tiny", "data.source")
    without = succeed("explain", "data.source")
    assert without.endswith(with_recipe)
    assert "llama3_tiny" in without.removesuffix(with_recipe)


def test_settings_of_reinforcement_learning_are_explained_in_such_a_run(succeed):
    printed = succeed(
        "explain", "rl.micro_batch_size", "rl.prompts_per_step", "model.global_batch_size"
    )
    assert "sort_digits under rampcli rl" in printed.splitlines()[0]
    assert "  value       128\n  set by      rl/sort_digits.yaml:" in printed
    assert "  value       null, which comes to 32\n" in printed
    assert "  unit        prompts\n" in printed


def test_settings_of_reinforcement_learning_are_told_from_those_of_a_recipe(succeed):
    words = ("explain", "-f", "sort_digits", "rl.generations_per_prompt")
    assert "without reinforcement learning" in succeed(*words).splitlines()[0]
    assert succeed(*words, "rl=grpo").startswith("rl.generations_per_prompt\n")


@pytest.mark.parametrize("keys", [["seed"], ["seed", "optim.lr", "data.global_batch_size"]])
def test_json_has_every_fact_and_nothing_else_is_printed(json_of, keys):
    resolved = resolve(llm.llama3_tiny.pretrain_recipe())
    assert json_of("explain", *keys) == [explain(key, resolved) for key in keys]


def test_a_key_of_nemo_is_explained_by_the_settings_that_it_decides(succeed, nemo_tree):
    words = ["--json", *nemo_tree, "trainer.limit_val_batches=3"]
    facts = json.loads(
        succeed("explain", *words, "trainer.limit_val_batches", "training.model.micro_batch_size")
    )
    assert [(fact["key"], fact["value"]) for fact in facts] == [
        ("trainer.limit_val_batches", 3),
        ("trainer.val_samples", 12),
        ("trainer.max_val_samples", 12),
        ("model.micro_batch_size", 2),
        ("data.micro_batch_size", 2),
    ]
    assert facts[0]["set_by"] == "command line"
    assert "trainer.val_samples and trainer.max_val_samples" in facts[0]["doc"]
    assert facts[4]["set_by"] == "model.micro_batch_size=2 (training/gpt3/tiny.yaml:6)"


@pytest.mark.parametrize(
    ("key", "words", "meaning"),
    [
        ("model.hidden_dropout", [], "does not change the run here"),
        ("model.hidden_dropout", ["model.hidden_dropout=0.1"], "refused: no model here has"),
        ("model.fp8", [], "does not change the run here"),
        ("model.fp8", ["model.fp8=true"], "refused: no model here computes in fp8"),
        ("model.kv_channels", [], "do not set it, so NeMo's default decides model.head_size"),
        (
            "model.optim.name",
            ["model.optim.name=adam", "optim.optimizer=adamw"],
            "The run uses your optim.optimizer instead",
        ),
    ],
)
def test_a_key_of_nemo_that_decides_nothing_says_why(key, words, meaning, json_of, nemo_tree):
    fact, *decided = json_of("explain", *nemo_tree, *words, key)
    assert (fact["key"], meaning in fact["doc"]) == (key, True)
    assert all(one["key"] in fact["doc"] for one in decided)


def test_a_key_that_no_file_of_nemo_has_is_unknown(refuse, nemo_tree):
    assert "rampcli explain optim.lr" in refuse("explain", *nemo_tree, "model.optim.lrr")
