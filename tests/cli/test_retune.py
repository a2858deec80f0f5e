"""The settings that are tied to the batch, in the output of commands."""

import json
import shlex

import pytest

TWICE = ("-f", "llama32_1b", "model.global_batch_size=1024")


def test_plans_and_dry_runs_name_the_settings_that_are_tied_to_the_batch(succeed):
    for command in (("plan",), ("pretrain", "--dry-run")):
        printed = succeed(*command, *TWICE)
        assert "1,024 samples, 2x the recipe's 512; --retune would adapt what is tied" in printed
        assert "  optim.lr 0.0003 -> 0.0004243 (the square root of 2x the batch" in printed
        assert "--retune has adapted" in succeed(*command, *TWICE, "--retune")


def test_a_plan_as_json_has_them_as_data(succeed):
    data = json.loads(succeed("plan", *TWICE, "optim.beta2=0.9", "--json"))["retuning"]
    assert (data["batch"], data["recipe_batch"], data["factor"]) == (1024, 512, 2.0)
    found = {one["key"]: one for one in data["settings"]}
    assert found["optim.lr"] == {
        **{"key": "optim.lr", "sets": None, "recipe": 3e-4, "now": 3e-4, "value": 4.243e-4},
        **{"rule": "the square root of 2x the batch", "source": "arXiv 2205.10287"},
        **{"tested": None, "state": "proposed", "set_by": "optim/nemo_adam.yaml:2"},
    }
    assert found["optim.beta2"]["state"] == "kept"
    assert json.loads(succeed("plan", "-f", "llama32_1b", "--json"))["retuning"] is None


def test_retuned_values_have_their_place_in_explanations_and_configurations(succeed):
    (fact,) = json.loads(succeed("explain", "optim.lr", *TWICE, "--retune", "--json"))
    assert (fact["value"], fact["set_by"]) == (4.243e-4, "--retune")
    assert fact["overrode"][0]["value"] == 3e-4
    configuration = succeed("pretrain", *TWICE, "--retune", "--cfg")
    assert "# --retune; overrides 0.0003" in configuration


def test_other_options_keep_what_a_plan_says_about_its_batch(succeed):
    seesaw = succeed("plan", *TWICE, "--retune", "--seesaw")
    heading = "batch: 1,024 samples before it grows, 2x the recipe's 512; --retune has adapted"
    assert heading in seesaw
    values = ("--what-if", "model.global_batch_size=512,1024")
    note = "note: the batch of 1 plan is not the recipe's"
    assert note + "; rampcli plan" in succeed("plan", "-f", "llama32_1b", *values)
    adapted = succeed("plan", "-f", "llama32_1b", *values, "--retune")
    assert note + ", and --retune has adapted what is tied to it" in " ".join(adapted.split())
    rows = json.loads(succeed("plan", "-f", "llama32_1b", *values, "--json"))
    assert [row["plan"]["retuning"] is None for row in rows] == [True, False]


def test_settings_are_tied_to_the_first_size_of_a_batch_that_grows_in_place_of_a_decay(succeed):
    printed = succeed("plan", *TWICE, "--seesaw").splitlines()
    (heading,) = [line for line in printed if line.startswith("batch: ")]
    assert heading.startswith("batch: 1,024 samples before it grows, 2x the recipe's 512; --retune")
    words = shlex.split(printed[printed.index("train it with:") + 1])
    assert heading in succeed("plan", *TWICE[:2], *words).splitlines()


@pytest.mark.parametrize("written", ["[${optim.beta2},1]", "['${optim.beta2}',1]"])
def test_references_name_the_adapted_values_also_in_lists(succeed, written):
    words = ("model.rampup_batch_size=[512,512,1024]", f"schedule.lr_factors={written}")
    facts = succeed(
        "explain", "schedule.lr_factors", "optim.beta2", *TWICE, *words, "--retune", "--json"
    )
    factors, beta2 = (fact["value"] for fact in json.loads(facts))
    assert factors == [beta2, 1]
    assert beta2 != 0.95
