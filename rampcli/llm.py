"""Recipes by name: `from rampcli import llm; llm.llama3_8b.pretrain_recipe()`.

A recipe is a module in recipes/ with a function `pretrain_recipe`. They are found as submodules of this one.
"""

import ast
import difflib
import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rampcli.bundled import bundled
from rampcli.config.groups import some_of
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.config.schema import Config

__path__ = [str(bundled("recipes"))]


def __getattr__(name: str) -> ModuleType:
    if name in recipe_names():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"there is no recipe {name}; there are: {', '.join(recipe_names())}")


def __dir__() -> list[str]:
    return [*globals(), *recipe_names()]


def recipe_names() -> list[str]:
    """The names of all recipes, sorted."""
    return sorted(
        path.stem for path in bundled("recipes").glob("*.py") if not path.stem.startswith("_")
    )


def from_factory(text: str) -> "Config":
    """The configuration of a factory as it is typed: `llama3_8b`, or `llama3_8b(num_nodes=2)` with literal arguments.

    Raises:
        UsageError: no such recipe, or arguments that it does not take.
    """
    name, arguments = _parse(text)
    if name not in recipe_names():
        near = difflib.get_close_matches(name, recipe_names(), n=1, cutoff=0.5) or recipe_names()
        raise UsageError(
            f"--factory {text}: there is no recipe {name}", remedy=f"--factory {some_of(near)}"
        )
    recipe = importlib.import_module(f"{__name__}.{name}").pretrain_recipe
    parameters = inspect.signature(recipe).parameters
    for argument, value in arguments.items():
        if argument not in parameters:
            raise UsageError(
                f"--factory {text}: {name} takes no argument {argument}",
                remedy=", ".join(parameters),
            )
        if type(value) is not type(parameters[argument].default):
            raise UsageError(
                f"--factory {text}: {argument}={value!r} is not an integer",
                remedy=f"{argument}={parameters[argument].default}",
            )
    config: Config = recipe(**arguments)
    return config


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    wrong = UsageError(
        f"--factory {text} is not a recipe's name",
        remedy="--factory llama3_8b or --factory 'llama3_8b(num_nodes=2)'",
    )
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise wrong from error
    if isinstance(node, ast.Name):
        return node.id, {}
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise wrong
    names = [keyword.arg for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise wrong
    try:
        return node.func.id, {
            keyword.arg or "": ast.literal_eval(keyword.value) for keyword in node.keywords
        }
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise wrong from error
