"""Recipes by name: `from rampcli import llm; llm.llama3_8b.pretrain_recipe()`.

A recipe is a public function of a module in recipes/ and has the name of that function. There is
one module per model family. `--factory` also takes recipes of users.

To add a recipe: a function in a module of `recipes`, and the sizes of its model in `conf/model`;
then `make goldens`.
"""

import ast
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rampcli.config.groups import some_of
from rampcli.errors import UsageError
from rampcli.files import bundled
from rampcli.plugins.extensions import import_source, is_extension, reporting_errors

if TYPE_CHECKING:
    from rampcli.settings.config import Config

_NAME = re.compile(r"[^\W\d]\w*|.*\.py(:[^\W\d]\w*)?|[^\W\d][\w.]*:[^\W\d]\w*")
"""A name, `FILE.py`, `FILE.py:NAME`, or `package.module:NAME`."""
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
        """Composes the recipe. Each recipe has defaults of its own for both arguments.

        Args:
            num_nodes: most nodes that a stage of the run uses.
            num_gpus_per_node: processes per node, each with a GPU or a share of the CPU.
        """
        family = importlib.import_module(f"{__name__}.{self._family}")
        recipe: Callable[..., Config] = getattr(family, self._name)
        return recipe

    @property
    def rl_recipe(self) -> "Callable[..., Config]":
        """Composes the recipe for reinforcement learning, as `rampcli rl` does.

        It takes the arguments of `pretrain_recipe`.
        """
        from rampcli.config.compose import with_rl

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
    message = f"there is no recipe {name}; there are: {', '.join(_RECIPES)}"
    raise AttributeError(message, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return [*globals(), *_RECIPES]


def recipe_names() -> list[str]:
    """Returns the names of all recipes, sorted."""
    return list(_RECIPES)


def similar_names(name: str, *, most: int) -> list[str]:
    """Returns up to `most` names of recipes that resemble `name`, or all names if no name does."""
    return difflib.get_close_matches(name, _RECIPES, n=most, cutoff=0.5) or recipe_names()


def from_factory(text: str) -> "Config":
    """Returns the configuration of a recipe given as text.

    Args:
        text: one of
            a name, `llama3_8b`;
            a file of the user, `my_recipe.py`, or one of its functions, `my_recipe.py:small`;
            a function of a module, `package.module:small`;
            one of these with literal arguments, `llama3_8b(num_nodes=2)`;
            a YAML file, `run.yaml`: the config.yaml of a run, or what `--cfg` prints.

    Raises:
        UsageError: there is no such recipe, it does not take these arguments, or it fails.
    """
    if text.strip().endswith((".yaml", ".yml")):
        from rampcli.config.compose import compose_file

        return compose_file(Path(text.strip()).expanduser())
    name, arguments = _parse(text)
    recipe, source = find_recipe(name)
    parameters = inspect.signature(recipe).parameters
    for argument, value in arguments.items():
        if argument not in parameters:
            raise UsageError(
                f"--factory {text}: {name} takes no argument {argument}",
                remedy=", ".join(parameters) or name,
            )
        if type(value) is not type(parameters[argument].default):
            raise UsageError(
                f"--factory {text}: {argument}={value!r} is not"
                f" {_A_TYPE.get(type(parameters[argument].default), 'of the right type')}",
                remedy=f"{argument}={parameters[argument].default!r}",
            )
    return _called(recipe, arguments, name, source)


def is_of_user(name: str) -> bool:
    """Returns whether a name is that of a file or of a function of a user."""
    return ":" in name or name.endswith(".py")


def find_recipe(name: str) -> tuple["Callable[..., Config]", str | None]:
    """Returns a recipe, and the file or module of the user that it comes from.

    Args:
        name: as in `from_factory`, without arguments.

    Raises:
        UsageError: there is no such recipe.
    """
    if is_of_user(name):
        source, function = (name, "") if name.endswith(".py") else name.rsplit(":", maxsplit=1)
        recipes = _recipes_of(import_source(source))
        if function in recipes:
            return recipes[function], source
        if len(recipes) == 1 and not function:
            return next(iter(recipes.values())), source
        raise _no_function(source, function, list(recipes))
    if name not in _RECIPES:
        own = f"{name}.py"
        raise UsageError(
            f"--factory {name}: there is no recipe {name}",
            remedy=f"--factory {own}"
            if os.path.isfile(own)
            else f"--factory {some_of(similar_names(name, most=1))}",
        )
    return _RECIPES[name].pretrain_recipe, None


def _recipes_of(module: ModuleType) -> "dict[str, Callable[..., Config]]":
    """Returns the recipes of a user's module: public functions that need no arguments."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not is_extension(value)
        and all(
            one.default is not one.empty for one in inspect.signature(value).parameters.values()
        )
    }


def _no_function(source: str, function: str, recipes: list[str]) -> UsageError:
    offered = some_of([f"--factory {source}:{name}" for name in recipes])
    if function:
        message = f"{source} has no recipe {function}"
    elif recipes:
        message = f"{source} has several recipes"
    else:
        message = f"{source} has no recipe, which is a public function that needs no arguments"
    return UsageError(message, remedy=offered or "rampcli recipes --new NAME, which writes one")


def _called(
    recipe: "Callable[..., Config]", arguments: dict[str, Any], name: str, source: str | None
) -> "Config":
    if source is None:
        return recipe(**arguments)
    from rampcli.settings.config import Config

    with reporting_errors(source):
        config = recipe(**arguments)
    if not isinstance(config, Config):
        raise UsageError(
            f"the recipe {name} returned a value of type {type(config).__name__}, not a Config",
            remedy="return compose(...)",
        )
    return config


_A_TYPE: dict[type, str] = {int: "an integer", str: "a string", bool: "True or False"}


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the keyword arguments of a factory.

    Raises:
        UsageError: the text is neither a name nor a call with literal keyword arguments.
    """
    wrong = UsageError(
        f"--factory {text} is not a recipe's name",
        remedy="--factory llama3_8b, 'llama3_8b(num_nodes=2)', my_recipe.py or my_recipe.py:small",
    )
    name, call = text.strip(), "()"
    if name.endswith(")"):
        name, _, call = name.rpartition("(")
        name, call = name.rstrip(), f"({call}"
    if not _NAME.fullmatch(name):
        raise wrong
    try:
        node = ast.parse(f"recipe{call}", mode="eval").body
        assert isinstance(node, ast.Call)
        names = [keyword.arg for keyword in node.keywords]
        if node.args or len(set(names)) < len(names):
            raise wrong
        return name, {
            keyword.arg or "": ast.literal_eval(keyword.value) for keyword in node.keywords
        }
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise wrong from error
