"""Settings that say one thing in different ways: the nearest replaces the others."""

import pytest

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.translate import without_alternatives
from rampcli.settings.by_key import leaves
from tests.config.overrides import refusal_of, resolved_with

ENDS = {"max_steps": 10, "max_samples": 5000, "max_tokens": 9_000_000}


def test_an_option_on_the_command_line_replaces_a_recipes_value_in_another_unit(option):
    recipe = compose("optim.warmup_samples=null", "optim.warmup_steps=10")
    mine = option("optim/mine", "warmup_samples: 100\n")
    stack = without_alternatives(apply_overrides(recipe, ["optim=mine"], config_dir=mine))
    assert stack.entry("optim.warmup_samples").value == 100
    assert stack.entry("optim.warmup_steps").value is None


def test_a_replaced_key_names_the_word_that_replaced_it():
    recipe = compose(
        "batch=nemo_gpt3",
        "model.rampup_batch_size=null",
        "model.step_batch_size_schedule='0:768 1B:2048'",
    )
    typed = ["data.rampup_batch_size=[256,256,10M]", "model.global_batch_size=2048"]
    stack = without_alternatives(apply_overrides(recipe, typed))
    place = "data.rampup_batch_size=[256,256,10000000] (command line)"
    entry = stack.entry("model.step_batch_size_schedule")
    assert (entry.value, entry.place, entry.by) == (None, place, "model.rampup_batch_size")


REPLACED = [
    *(
        (
            ["trainer.max_steps=null", f"trainer.{earlier}={ENDS[earlier]}"],
            [f"trainer.{end}={ENDS[end] + 1}"],
            {f"trainer.{one}": ENDS[one] + 1 if one == end else None for one in ENDS},
        )
        for earlier in ENDS
        for end in ENDS
    ),
    *(
        (
            ["optim.warmup_steps=115"],
            [f"optim.warmup_samples={samples}"],
            {"optim.warmup_steps": None, "optim.warmup_samples": samples},
        )
        for samples in (1000, 0)
    ),
    (
        ["model.rampup_batch_size=null", "model.step_batch_size_schedule='0:768 1B:2048'"],
        ["model.rampup_batch_size=[256,256,10M]", "model.global_batch_size=2048"],
        {
            "model.step_batch_size_schedule": None,
            "model.rampup_batch_size": [256, 256, 10_000_000],
        },
    ),
    *(
        (
            ["trainer.num_nodes=1", of_recipe],
            [typed],
            {"rampup.node_policy": policy, "rampup.nodes": nodes},
        )
        for of_recipe, typed, policy, nodes in (
            ("rampup.node_policy=best", "rampup.nodes=[1]", "nemo", [1]),
            ("rampup.nodes=[1]", "rampup.node_policy=best", "best", None),
            ("rampup.nodes=[1]", "rampup.node_policy=nemo", "nemo", None),
            ("rampup.nodes=[2]", "rampup.nodes=[1]", "nemo", [1]),
        )
    ),
]


@pytest.mark.parametrize(("of_recipe", "typed", "expected"), REPLACED)
def test_what_is_typed_replaces_what_a_recipe_says_in_another_way(of_recipe, typed, expected):
    recipe = compose("batch=nemo_gpt3", *of_recipe)
    values = dict(leaves(resolved_with(recipe, *typed).config))
    assert {key: values[key] for key in expected} == expected


def test_a_step_schedule_replaces_the_ramp_and_the_batch_of_the_files(composed):
    resolved = resolved_with(composed, "model.step_batch_size_schedule='0:768 1B:1536'")
    model = resolved.config.model
    assert (model.rampup_batch_size, model.global_batch_size) == (None, None)
    assert resolved.plan.global_batch_size == 1536
    assert [stage.global_batch_size for stage in resolved.plan.stages] == [768, 1536]
    place = resolved.config.stack.entry("model.rampup_batch_size").place
    assert place == "model.step_batch_size_schedule=0:768 1B:1536 (command line)"


def test_a_batch_given_beside_a_step_schedule_must_be_its_last_size(composed):
    typed = "model.step_batch_size_schedule='0:768 1B:1536'"
    assert (
        resolved_with(composed, typed, "model.global_batch_size=1536")
        .plan.stages[-1]
        .global_batch_size
        == 1536
    )
    refusal = refusal_of(apply_overrides(composed, [typed, "model.global_batch_size=2048"]))
    assert (
        "model.step_batch_size_schedule ends at 1536, but model.global_batch_size=2048"
        in refusal.message
    )


def test_a_ramp_and_a_step_schedule_on_the_command_line_are_refused(composed):
    refusal = refusal_of(
        apply_overrides(
            composed,
            ["model.step_batch_size_schedule='0:768'", "model.rampup_batch_size=[256,256,10M]"],
        )
    )
    assert "the batch is scheduled twice" in refusal.message


def test_listed_nodes_replace_the_policy_of_maxtexts_ramp(composed):
    words = [
        "enable_rampup_batch_size=true",
        "per_device_batch_size=16",
        "per_device_batch_size_start=4",
        "per_device_batch_size_increment=4",
        "global_rampup_samples=1M",
    ]
    resolved = resolved_with(composed, *words, "rampup.nodes=[4,8,12,16]")
    assert [stage.num_nodes for stage in resolved.plan.stages] == [4, 8, 12, 16]
    assert resolved.config.rampup.node_policy == "nemo"
