from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.cli.composing import compose_words
from rampcli.config.compose import compose, lay_over
from rampcli.config.layers import Layer, Rank, Said, Stack, stack_of
from rampcli.config.resolve import resolve
from rampcli.config.schema import Config
from rampcli.config.settings import leaves, settings
from rampcli.config.values import typed
from rampcli.errors import Report, UsageError

REPOSITORY = Path(__file__).parents[2]


def place_of(config, key):
    return config.stack.said(key).place


def rank_of(config, key):
    return config.stack.rank(key)


def test_a_value_from_conf_is_placed_at_the_line_that_sets_it(composed):
    from_files = [key for key in dict(leaves(composed)) if rank_of(composed, key) is Rank.CONF]
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
    assert rank_of(composed, "trainer.num_nodes") is Rank.RECIPE


def test_a_value_that_is_not_set_is_a_default(composed):
    assert place_of(composed, "seed") == "default"
    assert rank_of(composed, "seed") is Rank.SCHEMA


def test_a_value_assigned_in_python_is_placed_in_python(recipe):
    recipe.optim.lr = 0.5
    recipe.seed = 5
    assert recipe.stack.edits(recipe) == {"optim.lr": 0.5, "seed": 5}
    config = resolve(recipe).config
    assert (place_of(config, "optim.lr"), place_of(config, "seed")) == ("Python", "Python")
    assert rank_of(config, "optim.lr") is rank_of(config, "seed") is Rank.USER
    assert rank_of(config, "optim.beta1") is Rank.CONF


def test_changing_a_list_in_place_is_an_edit(recipe):
    recipe.model.rampup_batch_size[2] = 5_000_000
    assert recipe.stack.edits(recipe) == {"model.rampup_batch_size": [256, 256, 5_000_000]}


def test_a_typed_value_is_placed_on_the_command_line_even_if_it_changes_nothing(composed):
    laid = lay_over(composed, ["optim.lr=0.5", "seed=1234"]).config()
    assert (place_of(laid, "optim.lr"), place_of(laid, "seed")) == ("command line", "command line")
    assert rank_of(laid, "optim.lr") is rank_of(laid, "seed") is Rank.USER
    assert place_of(laid, "optim.beta1").startswith("optim/nemo_gpt3.yaml:")


def test_an_assignment_in_python_has_the_rank_of_the_recipe_under_the_command_line(
    recipe,
):
    recipe.optim.lr = 0.5
    laid = lay_over(recipe, ["seed=5"]).config()
    assert rank_of(laid, "optim.lr") is Rank.RECIPE
    assert rank_of(laid, "seed") is Rank.USER


def history_of(config, key):
    return [(said.place, str(said.value)) for said in config.stack.history(key)]


def test_a_history_lists_every_layer_that_set_a_key_and_the_last_one_wins(
    composed, line_of, gpt3_5b_place
):
    key = "model.rampup_batch_size"
    line = line_of("conf/batch/nemo_gpt3.yaml", "rampup_batch_size: null")
    said = [
        ("default", "None"),
        (f"batch/nemo_gpt3.yaml:{line}", "None"),
        (gpt3_5b_place, "[256, 256, 10000000]"),
    ]
    assert history_of(composed, key) == said
    laid = lay_over(composed, [f"{key}=[512,512,1000]"]).config()
    assert history_of(laid, key) == [*said, ("command line", "[512, 512, 1000]")]
    laid.model.rampup_batch_size = None
    edited = resolve(laid).config
    assert history_of(edited, key)[-2:] == [
        ("command line", "[512, 512, 1000]"),
        ("Python", "None"),
    ]


def test_a_refused_nan_names_its_line(option):
    with pytest.raises(UsageError) as refused:
        lay_over(
            compose("optim=nemo_adam"),
            ["optim=mine"],
            config_dir=option("optim/mine", "lr: .nan\n"),
        )
    assert refused.value.set_by == ("optim/mine.yaml:1",)


def test_the_history_of_an_unset_key_is_its_default(composed):
    assert history_of(composed, "seed") == [("default", "1234")]
    assert history_of(composed, "rampup.node_policy") == [("default", "nemo")]


def test_an_option_overrides_a_value_set_before_it_and_the_history_shows_both(option):
    mine = option("batch/mine", "# @package _global_\ntrainer:\n  num_nodes: 3\n")
    laid = lay_over(
        compose("batch=nemo_gpt3", "trainer.num_nodes=16"), ["batch=mine"], config_dir=mine
    ).config()
    assert place_of(laid, "trainer.num_nodes") == "batch/mine.yaml:3"
    assert [value for _, value in history_of(laid, "trainer.num_nodes")] == ["1", "16", "3"]
    assert rank_of(laid, "trainer.num_nodes") is Rank.CHOSEN


KEYS = ["seed", "trainer.num_nodes", "trainer.max_steps", "optim.warmup_steps"]
LAYERS = st.lists(
    st.tuples(st.sampled_from(Rank), st.dictionaries(st.sampled_from(KEYS), st.integers(1, 99))),
    max_size=6,
)


@given(spoken=LAYERS)
def test_a_key_has_the_value_place_and_rank_of_the_last_layer_that_sets_it(spoken):
    layers = [
        Layer(
            str(number), rank, {key: Said(value, f"line {number}") for key, value in says.items()}
        )
        for number, (rank, says) in enumerate(spoken)
    ]
    for split in range(len(layers) + 1):
        stack = Stack(tuple(layers[:split]), tuple(layers[split:]))
        for key in KEYS:
            said = [
                (rank, says[key], number)
                for number, (rank, says) in enumerate(spoken)
                if key in says
            ]
            rank, value, number = said[-1] if said else (Rank.SCHEMA, settings()[key].default, None)
            place = "default" if number is None else f"line {number}"
            assert stack.said(key) == Said(value, place)
            assert stack.rank(key) is rank
            assert len(stack.history(key)) == len(said) + 1
            assert stack.history(key)[-1] == stack.said(key)
            assert stack.values()[key] == value


def test_a_configuration_has_the_values_of_its_stack_and_keeps_it(composed):
    assert dict(leaves(composed)) == composed.stack.values()
    again = composed.stack.config()
    assert again == composed
    assert again.stack is composed.stack
    assert composed.stack.edits(composed) == {}


def test_a_layer_converts_values_to_their_types_and_leaves_wrong_ones_out():
    report = Report()
    layer = Layer.of("here", Rank.USER, {"seed": "many", "trainer.max_steps": "2M"}, report=report)
    assert layer.says == {"trainer.max_steps": Said(2_000_000, "here")}
    assert [error.set_by for error in report.errors] == [("here",)]


def test_a_configuration_built_in_python_counts_as_edited_defaults():
    config = Config(seed=5)
    assert stack_of(config).edits(config) == {"seed": 5}
    assert place_of(resolve(build_smallest(config)).config, "seed") == "Python"


def build_smallest(config):
    config.model.global_batch_size, config.data.micro_batch_size = 16, 4
    return config


def test_an_error_names_each_place_once_and_omits_unknown_keys(composed):
    error = UsageError("x", keys=("trainer.num_nodes", "optim", "trainer.devices", "optim.beta1"))
    laid = lay_over(composed, ["trainer.num_nodes=4"]).config()
    laid.stack.name_sources(error)
    recipe, file = place_of(composed, "trainer.devices"), place_of(composed, "optim.beta1")
    assert error.set_by == ("trainer.num_nodes=4 (command line)", recipe, file)


def test_every_value_is_converted_once_between_command_line_and_plan(monkeypatch):
    typed_values = []

    def count(key, value):
        typed_values.append((key, str(value)))
        return typed(key, value)

    monkeypatch.setattr("rampcli.config.layers.typed", count)
    words = ["trainer.num_nodes=8", "data.global_batch_size=4096", "optim.lr=0.5"]
    resolved = compose_words("gpt3_5b", words, config_dir=None, resumes=True)
    said = [
        (key, str(said.value))
        for key in settings()
        for said in resolved.config.stack.history(key)
        if said.by is None and said.place != "default"
    ]
    assert len(typed_values) == len(said)
    assert {key for key, _ in typed_values} == {key for key, _ in said}
