from pathlib import Path

import pytest

from rampcli.config.compose import compose, lay_over
from rampcli.config.origin import DEFAULT, ConfFile, Layer, Origin, Said, Source
from rampcli.config.settings import leaves
from rampcli.errors import UsageError

REPOSITORY = Path(__file__).parents[2]


def place_of(config, key):
    return config.origin.place(key, dict(leaves(config))[key])


def layer_of(config, key):
    return config.origin.layer(key, dict(leaves(config))[key])


def test_a_value_from_conf_is_placed_at_the_line_that_sets_it(composed):
    from_files = [key for key in dict(leaves(composed)) if layer_of(composed, key) is Layer.CONF]
    assert {"model.hidden_size", "data.source", "model.global_batch_size", "optim.beta1"} <= set(
        from_files
    )
    for key in from_files:
        name, _, number = place_of(composed, key).rpartition(":")
        line = (
            (REPOSITORY / "conf" / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        )
        assert line.strip().startswith(f"{key.rpartition('.')[2]}:")


def test_a_value_that_a_recipe_chooses_is_placed_where_it_composes(composed):
    name, _, number = place_of(composed, "trainer.num_nodes").rpartition(":")
    assert name == "recipes/gpt3.py"
    assert (
        "compose(" in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    )
    assert layer_of(composed, "trainer.num_nodes") is Layer.RECIPE


def test_a_value_that_nothing_sets_is_a_default(composed):
    assert place_of(composed, "seed") == "default"
    assert layer_of(composed, "seed") is Layer.SCHEMA


def test_a_value_assigned_in_python_is_placed_there(recipe):
    recipe.optim.lr = 0.5
    recipe.seed = 5
    assert (place_of(recipe, "optim.lr"), place_of(recipe, "seed")) == ("Python", "Python")
    assert layer_of(recipe, "optim.lr") is layer_of(recipe, "seed") is Layer.USER


def test_a_value_typed_is_placed_on_the_command_line_even_where_it_changes_nothing(composed):
    laid = lay_over(composed, ["optim.lr=0.5", "seed=1234"])
    assert (place_of(laid, "optim.lr"), place_of(laid, "seed")) == ("command line", "command line")
    assert layer_of(laid, "optim.lr") is layer_of(laid, "seed") is Layer.USER
    assert place_of(laid, "optim.beta1").startswith("optim/nemo_gpt3.yaml:")


def test_what_a_recipe_assigns_in_python_is_the_recipes_once_the_command_line_is_laid_over_it(
    recipe,
):
    recipe.optim.lr = 0.5
    laid = lay_over(recipe, ["seed=5"])
    assert layer_of(laid, "optim.lr") is Layer.RECIPE
    assert layer_of(laid, "seed") is Layer.USER


@pytest.mark.parametrize("package", ["", "g"])
def test_lines_of_a_file_are_those_of_its_leaves_under_the_package(tmp_path, package):
    path = tmp_path / "o.yaml"
    path.write_text("# a comment\na: 1\nb:\n  c: [1,\n  2]\n  d:\n", encoding="utf-8")
    said = {
        "a": Said("g/o.yaml:2", 1),
        "b.c": Said("g/o.yaml:4", [1, 2]),
        "b.d": Said("g/o.yaml:6", None),
    }
    expected = {f"{package}.{key}" if package else key: what for key, what in said.items()}
    assert ConfFile(path=path, name="g/o.yaml", package=package).says == expected


def test_an_empty_file_sets_nothing(tmp_path):
    path = tmp_path / "o.yaml"
    path.write_text("# nothing\n", encoding="utf-8")
    assert ConfFile(path=path, name="g/o.yaml", package="g").says == {}


def history_of(config, key):
    return [
        (said.place, str(said.value))
        for said in config.origin.history(key, dict(leaves(config))[key])
    ]


def test_a_history_tells_every_layer_that_spoke_and_the_last_one_holds(
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
    laid = lay_over(composed, [f"{key}=[512,512,1000]"])
    assert history_of(laid, key) == [*said, ("command line", "[512, 512, 1000]")]
    laid.model.rampup_batch_size = None
    assert history_of(laid, key)[-2:] == [("command line", "[512, 512, 1000]"), ("Python", "None")]


def test_a_number_that_is_none_keeps_its_place(option):
    with pytest.raises(UsageError) as refused:
        lay_over(
            compose("optim=nemo_adam"),
            ["optim=mine"],
            config_dir=option("optim/mine", "lr: .nan\n"),
        )
    assert refused.value.set_by == ("optim/mine.yaml:1",)


def test_the_history_of_what_nobody_set_is_its_default(composed):
    assert history_of(composed, "seed") == [("default", "1234")]
    assert history_of(composed, "rampup.node_policy") == [("default", "nemo")]


def test_an_option_that_is_chosen_after_a_value_outdoes_it_and_the_history_says_so(option):
    mine = option("batch/mine", "# @package _global_\ntrainer:\n  num_nodes: 3\n")
    laid = lay_over(
        compose("batch=nemo_gpt3", "trainer.num_nodes=16"), ["batch=mine"], config_dir=mine
    )
    assert place_of(laid, "trainer.num_nodes") == "batch/mine.yaml:3"
    assert [value for _, value in history_of(laid, "trainer.num_nodes")] == ["1", "16", "3"]
    assert layer_of(laid, "trainer.num_nodes") is Layer.CONF


def test_what_decided_a_canonical_key_is_named_with_its_own_place_and_layer():
    origin = Origin(
        composed={"a": 1, "word": 2, "other": None},
        sources={
            "a": Source(Layer.CONF, "conf"),
            "word": Source(Layer.USER, "command line"),
            "other": DEFAULT,
        },
    )
    settled = origin.settled({"a": 1, "word": 2, "other": None}, {"a": ("word", 4)})
    assert settled.place("a", 4) == "word=2 (command line)"
    assert settled.layer("a", 4) is Layer.USER
    assert settled.layer("other", None) is Layer.SCHEMA


def test_an_edit_stays_pythons_when_a_configuration_is_settled(recipe):
    recipe.seed = 5
    given = dict(leaves(recipe))
    settled = recipe.origin.settled(given, {})
    assert (settled.place("seed", 5), settled.layer("seed", 5)) == ("Python", Layer.USER)
    assert settled.layer("optim.beta1", given["optim.beta1"]) is Layer.CONF
