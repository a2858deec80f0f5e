"""How spellings of other systems, and keys that replace each other, fold into canonical keys."""

import pytest

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.folding import fold
from rampcli.config.layers import Entry, Layer, Precedence, Stack
from rampcli.config.settings import FOREIGN, leaves
from rampcli.config.snapshot import canonical_values
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from tests.config.overrides import RAMP, refusal_of, resolved_with, words

ENDS = {"max_steps": 10, "max_samples": 5000, "max_tokens": 9_000_000}


def test_folding_leaves_no_word_of_another_system(composed):
    config = resolved_with(
        composed, *words(RAMP), "expansion_factor_real_data=2", "model.tensor_model_parallel_size=1"
    ).config
    assert [key for key, value in leaves(config) if key in FOREIGN and value is not None] == []


def test_folding_does_not_change_its_input(composed):
    stack = apply_overrides(composed, words(RAMP))
    before = stack.values()
    fold(stack)
    assert stack.values() == before


def test_a_canonical_key_has_the_place_and_precedence_of_the_spelling_that_set_it(composed):
    stack, _ = fold(apply_overrides(composed, ["data.global_batch_size=4096"]))
    entry = stack.entry("model.global_batch_size")
    assert entry == Entry(
        4096, "data.global_batch_size=4096 (command line)", "data.global_batch_size"
    )
    assert stack.precedence("model.global_batch_size") is Precedence.USER


def test_an_option_on_the_command_line_replaces_a_recipes_value_in_another_unit(option):
    recipe = compose("optim.warmup_samples=null", "optim.warmup_steps=10")
    mine = option("optim/mine", "warmup_samples: 100\n")
    stack, _ = fold(apply_overrides(recipe, ["optim=mine"], config_dir=mine))
    assert stack.entry("optim.warmup_samples").value == 100
    assert stack.entry("optim.warmup_steps").value is None


def test_a_replaced_key_names_the_word_that_replaced_it():
    recipe = compose(
        "batch=nemo_gpt3",
        "model.rampup_batch_size=null",
        "model.step_batch_size_schedule='0:768 1B:2048'",
    )
    typed = ["data.rampup_batch_size=[256,256,10M]", "model.global_batch_size=2048"]
    stack, _ = fold(apply_overrides(recipe, typed))
    place = "data.rampup_batch_size=[256,256,10000000] (command line)"
    assert stack.entry("model.step_batch_size_schedule") == Entry(
        None, place, "model.rampup_batch_size"
    )


@pytest.mark.parametrize("typed", ENDS)
@pytest.mark.parametrize("from_recipe", ENDS)
def test_an_end_on_the_command_line_replaces_the_recipes_end_in_any_unit(from_recipe, typed):
    recipe = compose(
        "batch=nemo_gpt3", "trainer.max_steps=null", f"trainer.{from_recipe}={ENDS[from_recipe]}"
    )
    trainer = resolved_with(recipe, f"trainer.{typed}={ENDS[typed] + 1}").config.trainer
    assert {end: getattr(trainer, end) for end in ENDS} == {
        end: ENDS[end] + 1 if end == typed else None for end in ENDS
    }


def test_a_warm_up_on_the_command_line_replaces_the_recipes_warm_up(composed):
    optim = resolved_with(composed, "optim.warmup_samples=1K").config.optim
    assert (composed.optim.warmup_steps, optim.warmup_steps, optim.warmup_samples) == (
        115,
        None,
        1000,
    )


def test_a_warm_up_of_zero_replaces_the_recipes_warm_up(composed):
    optim = resolved_with(composed, "optim.warmup_samples=0").config.optim
    assert (optim.warmup_steps, optim.warmup_samples) == (None, 0)


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


def test_a_ramp_on_the_command_line_replaces_the_step_schedule_of_a_recipe():
    recipe = compose(
        "batch=nemo_gpt3",
        "model.rampup_batch_size=null",
        "model.step_batch_size_schedule='0:768 1B:2048'",
    )
    config = resolved_with(
        recipe, "model.rampup_batch_size=[256,256,10M]", "model.global_batch_size=2048"
    ).config
    assert (config.model.step_batch_size_schedule, config.model.rampup_batch_size) == (
        None,
        [256, 256, 10_000_000],
    )


def test_a_ramp_and_a_step_schedule_on_the_command_line_are_refused(composed):
    refusal = refusal_of(
        apply_overrides(
            composed,
            ["model.step_batch_size_schedule='0:768'", "model.rampup_batch_size=[256,256,10M]"],
        )
    )
    assert "the batch is scheduled twice" in refusal.message


def test_a_spelling_on_the_command_line_wins_over_a_recipe(composed):
    config = resolved_with(composed, "data.global_batch_size=4096").config
    assert config.model.global_batch_size == 4096
    assert (
        config.stack.entry("model.global_batch_size").place
        == "data.global_batch_size=4096 (command line)"
    )


def test_a_canonical_key_on_the_command_line_wins_over_a_spelling_of_the_recipe():
    recipe = compose("batch=nemo_gpt3", "data.global_batch_size=4096")
    assert resolve(recipe).config.model.global_batch_size == 4096
    assert (
        resolved_with(recipe, "model.global_batch_size=1024").config.model.global_batch_size == 1024
    )


def test_different_spellings_of_equal_precedence_are_refused_and_both_named():
    ours = Layer("recipe", Precedence.RECIPE, {"model.global_batch_size": Entry(16, "recipe")})

    def spelt(precedence):
        return Layer("spelt", precedence, {"data.global_batch_size": Entry(8, "spelt")})

    with pytest.raises(
        UsageError,
        match=r"data\.global_batch_size=8 and model\.global_batch_size=16 are two spellings",
    ):
        fold(Stack((ours, spelt(Precedence.RECIPE))))
    stack, _ = fold(Stack((ours, spelt(Precedence.USER))))
    assert stack.entry("model.global_batch_size").value == 8
    stack, _ = fold(Stack((spelt(Precedence.CONF), ours)))
    assert stack.entry("model.global_batch_size").value == 16


@pytest.mark.parametrize(
    "typed",
    [
        words(RAMP),
        ["per_device_batch_size=4", "gradient_accumulation_steps=2"],
        ["enable_rampup_batch_size=false"],
        ["model.step_batch_size_schedule='0:768 1B:1536'"],
        ["data.global_batch_size=1024", "trainer.strategy.tensor_model_parallel_size=2"],
        ["expansion_factor_real_data=2", "optim.warmup_samples=5K", "trainer.max_tokens=5B"],
        ["ici_tensor_parallelism=2", "dcn_tensor_parallelism=2", "ici_fsdp_parallelism=-1"],
    ],
    ids=lambda typed: typed[0],
)
def test_words_on_the_command_line_and_assignments_in_python_give_the_same_snapshot_and_plan(
    composed, recipe, typed
):
    for word in typed:
        key, _, value = word.partition("=")
        *sections, name = key.split(".")
        section = recipe
        for part in sections:
            section = getattr(section, part)
        setattr(section, name, {"true": True, "false": False}.get(value, value.strip("'")))
    on_the_line, in_python = resolved_with(composed, *typed), resolve(recipe)
    assert canonical_values(on_the_line.config) == canonical_values(in_python.config)
    assert on_the_line.plan == in_python.plan
