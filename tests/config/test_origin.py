from pathlib import Path

import pytest

from rampcli.config.compose import lay_over
from rampcli.config.leaves import leaves
from rampcli.config.origin import ConfFile, Layer

REPOSITORY = Path(__file__).parents[2]


def place_of(config, key):
    return config.origin.place(key, dict(leaves(config))[key])


def layer_of(config, key):
    return config.origin.layer(key, dict(leaves(config))[key])


def test_a_value_from_conf_is_placed_at_the_line_that_sets_it(composed):
    from_files = [key for key in dict(leaves(composed)) if layer_of(composed, key) is Layer.CONF]
    assert {"model.hidden_size", "data.source", "model.rampup_batch_size", "optim.lr"} <= set(from_files)
    for key in from_files:
        name, _, number = place_of(composed, key).rpartition(":")
        line = (REPOSITORY / "conf" / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        assert line.strip().startswith(f"{key.rpartition('.')[2]}:")


def test_a_value_that_a_recipe_chooses_is_placed_where_it_composes(composed):
    name, _, number = place_of(composed, "trainer.num_nodes").rpartition(":")
    assert name == "recipes/gpt3_5b.py"
    assert "compose(" in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]
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
    assert place_of(laid, "optim.min_lr").startswith("optim/gpt3_5b.yaml:")


def test_what_a_recipe_assigns_in_python_is_the_recipes_once_the_command_line_is_laid_over_it(recipe):
    recipe.optim.lr = 0.5
    laid = lay_over(recipe, ["seed=5"])
    assert layer_of(laid, "optim.lr") is Layer.RECIPE
    assert layer_of(laid, "seed") is Layer.USER


@pytest.mark.parametrize(
    ("package", "places"),
    [
        ("", {"a": "g/o.yaml:2", "b.c": "g/o.yaml:4", "b.d": "g/o.yaml:5"}),
        ("g", {"g.a": "g/o.yaml:2", "g.b.c": "g/o.yaml:4", "g.b.d": "g/o.yaml:5"}),
    ],
)
def test_lines_of_a_file_are_those_of_its_leaves_under_the_package(tmp_path, package, places):
    path = tmp_path / "o.yaml"
    path.write_text("# a comment\na: 1\nb:\n  c: [1,\n  2]\n  d:\n", encoding="utf-8")
    places = {key: place if key[-1] != "d" else "g/o.yaml:6" for key, place in places.items()}
    assert ConfFile(path=path, name="g/o.yaml", package=package).places() == places


def test_an_empty_file_sets_nothing(tmp_path):
    path = tmp_path / "o.yaml"
    path.write_text("# nothing\n", encoding="utf-8")
    assert ConfFile(path=path, name="g/o.yaml", package="g").places() == {}
