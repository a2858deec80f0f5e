from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.cli.base import Base
from rampcli.cli.composing import compose_words
from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import Entry, Layer, Precedence, Stack, stack_of
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, UsageError, set_to
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import foreign_words, leaves, settings
from rampcli.settings.config import Config

REPOSITORY = Path(__file__).parents[2]


def place_of(config, key):
    return config.stack.entry(key).place


def precedence_of(config, key):
    return config.stack.precedence(key)


def test_a_value_from_conf_is_placed_at_the_line_that_sets_it(composed):
    from_files = [
        key for key in dict(leaves(composed)) if precedence_of(composed, key) is Precedence.CONF
    ]
    assert {"model.hidden_size", "data.source", "model.global_batch_size", "optim.beta1"} <= set(
        from_files
    )
    for key in from_files:
        name, _, number = place_of(composed, key).rpartition(":")
        line = (
            (REPOSITORY / "conf" / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        )
        assert line.strip().startswith(f"{key.rpartition('.')[2]}:")


def test_a_value_chosen_by_a_recipe_is_placed_at_the_line_that_composes(composed):
    name, _, number = place_of(composed, "trainer.num_nodes").rpartition(":")
    assert name == "recipes/gpt3.py"
    assert (
        "compose(" in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    )
    assert precedence_of(composed, "trainer.num_nodes") is Precedence.RECIPE


def test_a_value_assigned_in_python_is_placed_in_python(recipe):
    recipe.optim.lr = 0.5
    recipe.seed = 5
    assert recipe.stack.edits(recipe) == {"optim.lr": 0.5, "seed": 5}
    config = resolve(recipe).config
    assert (place_of(config, "optim.lr"), place_of(config, "seed")) == ("Python", "Python")
    assert precedence_of(config, "optim.lr") is precedence_of(config, "seed") is Precedence.USER
    assert precedence_of(config, "optim.beta1") is Precedence.CONF


def test_changing_a_list_in_place_is_an_edit(recipe):
    recipe.model.rampup_batch_size[2] = 5_000_000
    assert recipe.stack.edits(recipe) == {"model.rampup_batch_size": [256, 256, 5_000_000]}


def test_a_typed_value_is_placed_on_the_command_line_even_if_it_changes_nothing(composed):
    overridden = apply_overrides(composed, ["optim.lr=0.5", "seed=1234"]).config()
    assert (place_of(overridden, "optim.lr"), place_of(overridden, "seed")) == (
        "command line",
        "command line",
    )
    assert (
        precedence_of(overridden, "optim.lr")
        is precedence_of(overridden, "seed")
        is Precedence.USER
    )
    assert place_of(overridden, "optim.beta1").startswith("optim/nemo_gpt3.yaml:")


def test_an_assignment_in_a_recipe_lies_above_its_choices_and_under_the_command_line(recipe):
    recipe.optim.lr = 0.5
    overridden = apply_overrides(recipe, ["seed=5"]).config()
    assert precedence_of(overridden, "optim.lr") is Precedence.EDITED
    assert precedence_of(overridden, "seed") is Precedence.USER


@pytest.mark.parametrize("typed", [[], ["seed=5"]], ids=["alone", "under words"])
def test_an_assignment_in_a_recipe_replaces_a_choice_that_says_it_otherwise(typed):
    recipe = compose(
        *("model=gpt3_5b", "batch=nemo_gpt3", "trainer.num_nodes=16", "trainer.devices=8"),
        *("parallel.tensor_parallel_size=2", "trainer.max_steps=10"),
    )
    recipe.trainer.max_samples, recipe.ici_tensor_parallelism = 4096, 4
    config = resolve(apply_overrides(recipe, typed)).config
    assert (config.trainer.max_steps, config.trainer.max_samples) == (None, 4096)
    assert config.parallel.tensor_parallel_size == 4


def history_of(config, key):
    return [(entry.place, str(entry.value)) for entry in config.stack.history(key)]


def test_a_history_lists_every_layer_that_set_a_key_and_the_last_one_wins(
    composed, line_of, gpt3_5b_place
):
    key = "model.rampup_batch_size"
    line = line_of("conf/batch/nemo_gpt3.yaml", "rampup_batch_size: null")
    entries = [
        ("default", "None"),
        (f"batch/nemo_gpt3.yaml:{line}", "None"),
        (gpt3_5b_place, "[256, 256, 10000000]"),
    ]
    assert history_of(composed, key) == entries
    overridden = apply_overrides(composed, [f"{key}=[512,512,1000]"]).config()
    assert history_of(overridden, key) == [*entries, ("command line", "[512, 512, 1000]")]
    overridden.model.rampup_batch_size = None
    edited = resolve(overridden).config
    assert history_of(edited, key)[-2:] == [
        ("command line", "[512, 512, 1000]"),
        ("Python", "None"),
    ]


def test_a_refused_nan_names_its_line(option):
    with pytest.raises(UsageError) as refused:
        apply_overrides(
            compose("optim=nemo_adam"),
            ["optim=mine"],
            config_dir=option("optim/mine", "lr: .nan\n"),
        )
    assert refused.value.set_by == ("optim.lr (optim/mine.yaml:1)",)


def test_an_option_overrides_a_value_set_before_it_and_the_history_shows_both(option):
    mine = option("batch/mine", "# @package _global_\ntrainer:\n  num_nodes: 3\n")
    overridden = apply_overrides(
        compose("batch=nemo_gpt3", "trainer.num_nodes=16"), ["batch=mine"], config_dir=mine
    ).config()
    assert place_of(overridden, "trainer.num_nodes") == "batch/mine.yaml:3"
    assert [value for _, value in history_of(overridden, "trainer.num_nodes")] == ["1", "16", "3"]
    assert precedence_of(overridden, "trainer.num_nodes") is Precedence.CHOSEN


KEYS = ["seed", "trainer.num_nodes", "trainer.max_steps", "optim.warmup_steps"]
LAYERS = st.lists(
    st.tuples(
        st.sampled_from(Precedence), st.dictionaries(st.sampled_from(KEYS), st.integers(1, 99))
    ),
    max_size=6,
)


@given(drawn=LAYERS)
def test_a_key_has_the_value_place_and_precedence_of_the_last_layer_that_sets_it(drawn):
    layers = [
        Layer(
            str(number),
            precedence,
            {key: Entry(value, f"line {number}") for key, value in entries.items()},
        )
        for number, (precedence, entries) in enumerate(drawn)
    ]
    for split in range(len(layers) + 1):
        stack = Stack(tuple(layers[:split]), tuple(layers[split:]))
        for key in KEYS:
            found = [
                (precedence, entries[key], number)
                for number, (precedence, entries) in enumerate(drawn)
                if key in entries
            ]
            precedence, value, number = (
                found[-1] if found else (Precedence.SCHEMA, settings()[key].default, None)
            )
            place = "default" if number is None else f"line {number}"
            assert stack.entry(key) == Entry(value, place)
            assert stack.precedence(key) is precedence
            assert len(stack.history(key)) == len(found) + 1
            assert stack.history(key)[-1] == stack.entry(key)
            assert stack.values()[key] == value


def test_a_configuration_has_the_values_of_its_stack_and_keeps_it(composed):
    assert dict(leaves(composed)) == composed.stack.values()
    again = composed.stack.config()
    assert again == composed
    assert again.stack is composed.stack
    assert composed.stack.edits(composed) == {}


def test_a_layer_converts_values_to_their_types_and_leaves_wrong_ones_out():
    report = ErrorReport()
    layer = Layer.of(
        "here", Precedence.USER, {"seed": "many", "trainer.max_steps": "2M"}, report=report
    )
    assert layer.entries == {"trainer.max_steps": Entry(2_000_000, "here")}
    assert [error.set_by for error in report.errors] == [("seed=many (here)",)]


def test_a_configuration_built_in_python_counts_as_edited_defaults():
    config = Config(seed=5)
    assert stack_of(config).edits(config) == {"seed": 5}
    assert place_of(resolve(build_smallest(config)).config, "seed") == "Python"


def build_smallest(config):
    config.model.global_batch_size, config.data.micro_batch_size = 16, 4
    return config


def test_an_error_names_each_key_once_with_its_place_and_omits_unknown_keys(composed):
    keys = ("trainer.num_nodes", "optim", "trainer.devices", "optim.beta1", "trainer.devices")
    error = UsageError("x", keys=keys)
    overridden = apply_overrides(composed, ["trainer.num_nodes=4"]).config()
    overridden.stack.name_sources(error)
    recipe, file = place_of(composed, "trainer.devices"), place_of(composed, "optim.beta1")
    assert error.set_by == (
        "trainer.num_nodes=4 (command line)",
        f"trainer.devices ({recipe})",
        f"optim.beta1 ({file})",
    )


def test_a_remedy_does_not_set_a_key_that_a_word_decided_beside_its_own(composed):
    error = UsageError(
        "x",
        keys=("seed",),
        remedy=[set_to("model.global_batch_size", 8), set_to("trainer.accumulate_grad_batches", 2)],
    )
    stack = resolve(apply_overrides(composed, ["gradient_accumulation_steps=3"])).config.stack
    stack.name_sources(error)
    assert error.remedies == (set_to("gradient_accumulation_steps", 2),)


def test_every_value_is_converted_once_between_command_line_and_plan(monkeypatch):
    typed_values = []

    def count(key, value):
        typed_values.append((key, str(value)))
        return typed(key, value)

    monkeypatch.setattr("rampcli.config.layers.typed", count)
    words = ["trainer.num_nodes=8", "data.global_batch_size=4096", "optim.lr=0.5"]
    resolved = compose_words(Base(factory="gpt3_5b"), words, resumes=True)
    entries = [
        (key, str(entry.value))
        for key in (*settings(), *foreign_words())
        for entry in resolved.config.stack.history(key)
        if entry.by is None and entry.place != "default"
    ]
    assert len(typed_values) == len(entries)
    assert {key for key, _ in typed_values} == {key for key, _ in entries}
