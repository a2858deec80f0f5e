"""Recipes by name: `from rampcli import llm; llm.llama3_8b.pretrain_recipe()`.

A recipe is a public function of a module in recipes/ and has the name of that function. There is
one module per model family.
"""

import ast
import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rampcli.bundled import bundled
from rampcli.config.groups import some_of
from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.config.schema import Config

__path__ = [str(bundled("recipes"))]


class Recipe(ModuleType):
    """A recipe as the module `rampcli.llm.NAME`.

    The module of its family is imported when `pretrain_recipe` is first used, so that listing the
    names needs no Hydra.
    """

    def __init__(self, name: str, family: str) -> None:
        super().__init__(f"{__name__}.{name}")
        self._name, self._family = name, family

    @property
    def pretrain_recipe(self) -> "Callable[..., Config]":
        """The function that composes the recipe; it takes `num_nodes` and `num_gpus_per_node`."""
        family = importlib.import_module(f"{__name__}.{self._family}")
        recipe: Callable[..., Config] = getattr(family, self._name)
        return recipe

    @property
    def rl_recipe(self) -> "Callable[..., Config]":
        """The function that composes the recipe as `rampcli rl` does, with the same arguments."""
        from rampcli.config.rl_recipe import with_rl

        name, pretrain_recipe = self._name, self.pretrain_recipe

        @wraps(pretrain_recipe)
        def recipe(**arguments: int) -> "Config":
            return with_rl(pretrain_recipe(**arguments), name)

        return recipe


def _find_recipes() -> dict[str, Recipe]:
    """Returns the recipes by name, sorted. The files are parsed, not imported."""
    found = {}
    for path in bundled("recipes").glob("*.py"):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                found[statement.name] = Recipe(statement.name, path.stem)
    return dict(sorted(found.items()))


_RECIPES = _find_recipes()
# With these entries, `import rampcli.llm.llama3_8b` works although there is no such file.
sys.modules.update({recipe.__name__: recipe for recipe in _RECIPES.values()})


def __getattr__(name: str) -> Recipe:
    if name in _RECIPES:
        return _RECIPES[name]
    raise AttributeError(f"there is no recipe {name}; there are: {', '.join(_RECIPES)}")


def __dir__() -> list[str]:
    return [*globals(), *_RECIPES]


def recipe_names() -> list[str]:
    """Returns the names of all recipes, sorted."""
    return list(_RECIPES)


def similar_names(name: str, *, most: int) -> list[str]:
    """Returns up to `most` names of recipes that resemble `name`, or all names if none does."""
    return difflib.get_close_matches(name, _RECIPES, n=most, cutoff=0.5) or recipe_names()


def from_factory(text: str) -> "Config":
    """Returns the configuration of a recipe given as text.

    Args:
        text: a name, `llama3_8b`, or a call with literal arguments, `llama3_8b(num_nodes=2)`.

    Raises:
        UsageError: there is no such recipe, or it does not take these arguments.
    """
    name, arguments = _parse(text)
    if name not in _RECIPES:
        raise UsageError(
            f"--factory {text}: there is no recipe {name}",
            remedy=f"--factory {some_of(similar_names(name, most=1))}",
        )
    recipe = _RECIPES[name].pretrain_recipe
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
    return recipe(**arguments)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the keyword arguments of a factory.

    Raises:
        UsageError: the text is neither a name nor a call with literal keyword arguments.
    """
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
