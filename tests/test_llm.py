import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.groups import some_of
from rampcli.errors import UsageError
from rampcli.settings.config import Config

RECIPES = list(json.loads((Path(__file__).parent / "recipes" / "goldens.json").read_text("utf-8")))
ALL = f"--factory {some_of(RECIPES)}"


def test_a_recipe_is_an_attribute_of_llm_and_a_module():
    assert llm.recipe_names() == RECIPES
    for name in RECIPES:
        assert callable(getattr(llm, name).pretrain_recipe)
        assert getattr(llm, name) is importlib.import_module(f"rampcli.llm.{name}")
    assert set(RECIPES) <= set(dir(llm))


def test_a_recipe_can_be_imported_first_and_the_names_are_known_without_hydra():
    probe = (
        "from rampcli.llm import recipe_names; import sys; recipe_names();"
        "assert 'hydra' not in sys.modules;"
        "from rampcli.llm.llama3_8b import pretrain_recipe; print(pretrain_recipe().name)"
    )
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "llama3_8b\n"


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_gpus_per_node"),
    [("llama3_tiny", 2, 1), ("llama3_8b", 1, 8), ("gpt3_175b", 128, 8)],
)
def test_the_arguments_of_a_recipe_have_defaults_of_its_own(name, num_nodes, num_gpus_per_node):
    parameters = inspect.signature(getattr(llm, name).pretrain_recipe).parameters
    assert {key: parameter.default for key, parameter in parameters.items()} == {
        "num_nodes": num_nodes,
        "num_gpus_per_node": num_gpus_per_node,
    }


def test_a_name_that_resembles_no_recipe_is_answered_with_all_recipes():
    assert llm.similar_names("llama3_8", most=1) == ["llama3_8b"]
    assert llm.similar_names("zzz", most=1) == RECIPES


def test_an_unknown_recipe_raises_an_attribute_error_that_names_the_recipes():
    with pytest.raises(
        AttributeError, match=f"there is no recipe llama4; there are: {', '.join(RECIPES)}"
    ):
        _ = llm.llama4


@pytest.mark.parametrize(
    ("text", "nodes", "devices"),
    [
        ("llama3_8b", 1, 8),
        (" llama3_8b() ", 1, 8),
        ("llama3_8b(num_gpus_per_node=4, num_nodes=3,)", 3, 4),
    ],
)
def test_a_factory_is_the_recipe_called_with_its_arguments(text, nodes, devices):
    config = llm.from_factory(text)
    assert isinstance(config, Config)
    assert (config.name, config.trainer.num_nodes, config.trainer.devices) == (
        "llama3_8b",
        nodes,
        devices,
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("llama3_tny", "--factory llama3_tiny"),
        ("gpt3", "--factory gpt3_5b"),
        ("zzz", ALL),
        ("os", ALL),
        ("__init__", ALL),
        ("llama", "--factory llama3_8b"),
        ("compose", ALL),
    ],
)
def test_an_unknown_recipe_is_refused_with_the_nearest_names(text, remedy):
    with pytest.raises(UsageError) as refusal:
        llm.from_factory(text)
    assert refusal.value.message == f"--factory {text}: there is no recipe {text}"
    assert refusal.value.remedy == remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("llama3_tiny(nodes=2)", "llama3_tiny takes no argument nodes"),
        ("llama3_tiny(num_nodes='2')", "num_nodes='2' is not an integer"),
        ("llama3_tiny(num_nodes=True)", "num_nodes=True is not an integer"),
        ("llama3_tiny(num_nodes=2.0)", "num_nodes=2.0 is not an integer"),
        ("llama3_tiny(num_nodes=None)", "num_nodes=None is not an integer"),
        ("llama3_tiny(num_nodes=[2])", "num_nodes=[2] is not an integer"),
    ],
)
def test_an_unknown_argument_of_a_recipe_is_refused(text, message):
    with pytest.raises(UsageError) as refusal:
        llm.from_factory(text)
    assert refusal.value.message == f"--factory {text}: {message}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llama3_tiny(",
        "llama3_tiny(2)",
        "llama3_tiny(*[2])",
        "llama3_tiny(num_nodes=1 + 1)",
        "llama3_tiny(num_nodes=n)",
        "llama3_tiny(num_nodes={[]: 1})",
        "llama3_tiny(num_nodes=1, num_nodes=2)",
        "llama3_tiny.pretrain_recipe",
        "llama3_tiny()()",
        "lambda: 1",
        "llama3_tiny; gpt3_5b",
        "llama3 tiny",
        "a\0b",
        pytest.param("(" * 5000, id="deep brackets"),
        pytest.param("-" * 100_000 + "1", id="deep signs"),
        pytest.param(f"llama3_tiny(num_nodes={'-' * 5000}1)", id="deep argument"),
        pytest.param(f"llama3_tiny(num_nodes={'9' * 5000})", id="endless number"),
    ],
)
def test_a_factory_other_than_a_call_with_literal_arguments_is_refused(text):
    with pytest.raises(UsageError, match="--factory"):
        llm.from_factory(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').mkdir({!r})",
        "llama3_tiny(num_nodes=__import__('os').mkdir({!r}))",
        "[__import__('os').mkdir({!r})]",
    ],
)
def test_a_factory_runs_nothing_but_the_recipe(text, tmp_path):
    proof = tmp_path / "ran"
    with pytest.raises(UsageError):
        llm.from_factory(text.format(str(proof)))
    assert not proof.exists()


@pytest.mark.parametrize("statement", ["config.trainer.nodes = 8", "config.trainer.nodes"])
def test_an_attribute_that_is_no_setting_is_refused_with_its_line_and_the_nearest_one(
    statement, tmp_path
):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from rampcli import llm\n\n\n"
        f"def mine():\n    config = llm.llama3_tiny.pretrain_recipe()\n    {statement}\n"
    )
    with pytest.raises(UsageError) as refusal:
        llm.from_factory(f"{recipe}:mine")
    assert refusal.value.message == (
        f"{recipe}: line 6: AttributeError: there is no setting trainer.nodes; the nearest is"
        " trainer.num_nodes"
    )
