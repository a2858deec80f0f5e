import copy
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.compose import lay_over
from rampcli.config.leaves import build, known_keys, leaves
from rampcli.config.resolve import resolve
from rampcli.config.schema import Config
from rampcli.errors import UsageError

INTEGERS = [key for key, kind in known_keys().items() if kind in (int, int | None)]


def assign(config, key, value):
    *sections, name = key.split(".")
    for section in sections:
        config = getattr(config, section)
    setattr(config, name, value)


def refusal_of(config):
    with pytest.raises(UsageError) as refusal:
        resolve(config)
    return refusal.value


def line_of(file, text):
    lines = (Path(__file__).parents[2] / file).read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.strip() == text)


def refusal_or_none(config):
    try:
        resolve(config)
    except UsageError as refusal:
        return refusal
    return None


def smallest():
    config = Config()
    config.model.global_batch_size, config.data.micro_batch_size = 16, 4
    return config


def test_resolving_leaves_the_configuration_as_it_was(recipe):
    recipe.data.global_batch_size = 4096
    before = copy.deepcopy(recipe)
    resolve(recipe)
    assert recipe == before


def test_resolving_what_is_resolved_changes_nothing(recipe):
    recipe.data.global_batch_size = 4096
    recipe.trainer.max_samples = 10
    once = resolve(recipe)
    twice = resolve(once.config)
    assert twice.config == once.config
    assert twice.plan == once.plan


def test_a_configuration_made_by_hand_resolves():
    plan = resolve(smallest()).plan
    assert [(stage.global_batch_size, stage.accumulate_grad_batches, stage.steps) for stage in plan.stages] == [(16, 4, None)]


@pytest.mark.parametrize(
    ("spelling", "canonical", "value"),
    [
        ("data.global_batch_size", "model.global_batch_size", 24),
        ("model.micro_batch_size", "data.micro_batch_size", 2),
        ("model.tensor_model_parallel_size", "parallel.tensor_parallel_size", 2),
        ("model.pipeline_model_parallel_size", "parallel.pipeline_parallel_size", 2),
        ("model.context_parallel_size", "parallel.context_parallel_size", 2),
        ("trainer.strategy.tensor_model_parallel_size", "parallel.tensor_parallel_size", 2),
        ("trainer.strategy.pipeline_model_parallel_size", "parallel.pipeline_parallel_size", 2),
        ("trainer.strategy.context_parallel_size", "parallel.context_parallel_size", 2),
    ],
)
@pytest.mark.parametrize("start", ["recipe", "by hand"])
def test_another_systems_spelling_says_the_same_as_the_canonical_key(recipe, start, spelling, canonical, value):
    plain = recipe if start == "recipe" else Config()
    needed = {
        "model.global_batch_size": 16,
        "data.micro_batch_size": 1,
        "trainer.num_nodes": 1,
        "trainer.devices": 2,
        "model.rampup_batch_size": None,
    }
    for key, number in needed.items():
        if key != canonical:
            assign(plain, key, number)
    spelt, spoken = copy.deepcopy(plain), copy.deepcopy(plain)
    assign(spelt, spelling, value)
    assign(spoken, canonical, value)
    assert resolve(spelt) == resolve(spoken)


def test_a_resolved_configuration_holds_no_spelling(recipe):
    recipe.data.global_batch_size = 4096
    resolved = dict(leaves(resolve(recipe).config))
    assert (resolved["model.global_batch_size"], resolved["data.global_batch_size"]) == (4096, None)


def test_two_spellings_that_differ_are_refused_with_both_places(composed):
    refusal = refusal_of(lay_over(composed, ["data.global_batch_size=4096", "model.global_batch_size=1024"]))
    assert refusal.message == "data.global_batch_size=4096 and model.global_batch_size=1024 are two spellings of one number and differ"
    assert refusal.set_by == ("data.global_batch_size=4096 (command line)", "model.global_batch_size=1024 (command line)")


def test_a_refusal_says_what_is_wrong_and_who_set_it_and_what_would_work(composed):
    conf = f"batch/gpt3_5b.yaml:{line_of('conf/batch/gpt3_5b.yaml', 'micro_batch_size: 4')}"
    recipe = f"recipes/gpt3_5b.py:{line_of('recipes/gpt3_5b.py', 'return compose(')}"
    assert str(refusal_of(lay_over(composed, ["model.global_batch_size=2176"]))) == (
        "error: model.global_batch_size=2176 does not divide into data.micro_batch_size=4 x 128 data-parallel ranks = 512\n"
        f"       set by: model.global_batch_size=2176 (command line) · {conf} · {recipe}\n"
        "       try:    model.global_batch_size=2048 or 2560, or data.micro_batch_size=1"
    )


def test_a_refused_spelling_is_placed_where_it_was_set(recipe):
    recipe.data.global_batch_size = 100
    assert refusal_of(recipe).set_by[0] == "data.global_batch_size=100 (Python)"


@pytest.mark.parametrize("end", ["max_samples", "max_tokens"])
def test_the_users_end_replaces_that_of_the_files_in_another_unit(composed, recipe, end):
    assert composed.trainer.max_steps == 75_000
    setattr(recipe.trainer, end, 640)
    for config in (recipe, lay_over(composed, [f"trainer.{end}=640"])):
        trainer = resolve(config).config.trainer
        assert (getattr(trainer, end), trainer.max_steps) == (640, None)


def test_the_users_end_replaces_that_which_the_recipe_assigned(recipe):
    recipe.trainer.max_samples = 10
    trainer = resolve(lay_over(recipe, ["trainer.max_tokens=640"])).config.trainer
    assert (trainer.max_steps, trainer.max_samples, trainer.max_tokens) == (None, None, 640)


def test_two_ends_of_the_users_own_are_refused(composed):
    refusal = refusal_of(lay_over(composed, ["trainer.max_steps=10", "trainer.max_tokens=640"]))
    assert refusal.message == "the run has two ends: trainer.max_steps=10 and trainer.max_tokens=640"


def test_an_end_that_is_taken_away_leaves_a_run_without_end(recipe):
    recipe.trainer.max_steps = None
    assert resolve(recipe).plan.end_sample is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed=-1 is below 0"),
        ({"data.sequence_length": 0}, "data.sequence_length=0 is below 1"),
        ({"model.num_query_groups": 0}, "model.num_query_groups=0 is below 1"),
        ({"parallel.tensor_parallel_size": 0}, "parallel.tensor_parallel_size=0 is below 1"),
        ({"model.tensor_model_parallel_size": 0}, "parallel.tensor_parallel_size=0 is below 1"),
        ({"checkpoint.keep_last": 0}, "checkpoint.keep_last=0 is below 1"),
        ({"trainer.val_every_steps": 0}, "trainer.val_every_steps=0 is below 1"),
        ({"trainer.num_nodes": 0}, "trainer.num_nodes=0 is less than one"),
        ({"trainer.devices": -8}, "trainer.devices=-8 is less than one"),
        ({"optim.lr": -0.1}, "optim.lr=-0.1 is below 0"),
        ({"trainer.gradient_clip_val": 0.0}, "trainer.gradient_clip_val=0.0 is not above zero"),
        ({"optim.eps": 0.0}, "optim.eps=0.0 is not above zero"),
        ({"name": ""}, "name='' cannot name a folder"),
        ({"name": ".."}, "name='..' cannot name a folder"),
        ({"name": "a/b"}, "name='a/b' cannot name a folder"),
        ({"name": "a\nb"}, r"name='a\nb' cannot name a folder"),
        ({"model.hidden_size": 130}, "model.hidden_size=130 does not divide into model.num_attention_heads=4"),
        ({"model.num_query_groups": 3}, "model.num_attention_heads=4 does not divide into model.num_query_groups=3"),
        ({"model.num_attention_heads": 128}, "rotary positions need an even size"),
        (
            {"optim.warmup_samples": 8, "optim.warmup_steps": 1},
            "the warm-up is given twice: optim.warmup_samples=8 and optim.warmup_steps=1",
        ),
        ({"model.rampup_batch_size": [8, 4]}, "model.rampup_batch_size=[8,4] has 2 values"),
        ({"trainer.max_steps": 0}, "trainer.max_steps=0 is less than one"),
        ({"parallel.tensor_parallel_size": 2}, "1 processes do not divide into tensor 2 x pipeline 1 x context 1"),
        ({"seed": "many"}, "seed=many is not an integer"),
        ({"seed": 2**64}, f"seed={2**64}"),
        ({"optim.lr": float("nan")}, "optim.lr=nan is not a finite number"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_key_and_its_place(changes, message):
    config = smallest()
    for key, value in changes.items():
        assign(config, key, value)
    refusal = refusal_of(config)
    assert message in refusal.message
    assert any("Python" in place for place in refusal.set_by)


@run(max_examples=20)
@given(hidden=st.integers(1, 40), heads=st.integers(1, 12), groups=st.none() | st.integers(1, 12))
@example(hidden=40, heads=12, groups=None)
@example(hidden=24, heads=12, groups=9)
def test_heads_are_taken_where_they_divide_and_else_the_largest_number_below_that_does_is_offered(hidden, heads, groups):
    config = smallest()
    config.model.position_embedding = "learned"
    config.model.hidden_size, config.model.num_attention_heads, config.model.num_query_groups = hidden, heads, groups
    refusal = refusal_or_none(config)
    if hidden % heads:
        largest = max(number for number in range(1, heads) if hidden % number == 0)
        assert refusal.remedy == f"model.num_attention_heads={largest}"
    elif groups is not None and heads % groups:
        largest = max(number for number in range(1, groups) if heads % number == 0)
        assert refusal.remedy == f"model.num_query_groups={largest}"
    else:
        assert refusal is None


@run(max_examples=20)
@given(changes=st.dictionaries(st.sampled_from(INTEGERS), st.integers(-2, 9), max_size=4))
@example(changes={"seed": 2**100})
@example(changes={"model.num_query_groups": 9})
def test_any_integers_are_planned_or_refused_with_their_key_and_place(changes):
    config = smallest()
    for key, value in changes.items():
        assign(config, key, value)
    refusal = refusal_or_none(config)
    assert refusal is None or (refusal.keys and refusal.set_by)


def test_values_assigned_in_python_are_read_as_on_the_command_line():
    config = smallest()
    config.trainer.max_tokens, config.model.rampup_batch_size = "2M", [4, 4, "1K"]
    resolved = resolve(config).config
    assert (resolved.trainer.max_tokens, resolved.model.rampup_batch_size) == (2_000_000, [4, 4, 1000])


def test_a_run_lives_in_its_own_folder_unless_it_is_given_another():
    config = smallest()
    config.name = "first"
    assert resolve(config).run_dir == Path("runs/first")
    config.run_dir = "/elsewhere"
    assert resolve(config).run_dir == Path("/elsewhere")


def test_the_settings_reach_the_plan():
    config = build(
        {
            "model.global_batch_size": 64,
            "model.rampup_batch_size": [16, 16, 1000],
            "data.micro_batch_size": 2,
            "data.sequence_length": 50,
            "trainer.num_nodes": 4,
            "trainer.devices": 4,
            "trainer.max_tokens": 100_000,
            "parallel.tensor_parallel_size": 2,
            "rampup.node_policy": "fixed",
        },
        place=str,
    )
    plan = resolve(config).plan
    assert [
        (stage.global_batch_size, stage.num_nodes, stage.data_parallel_size, stage.accumulate_grad_batches) for stage in plan.stages
    ] == [
        (16, 4, 8, 1),
        (32, 4, 8, 2),
        (48, 4, 8, 3),
        (64, 4, 8, 4),
    ]
    assert plan.sequence_length == 50
    assert 2000 <= plan.end_sample < 2000 + 64
