"""Typer applications that convert a parameter only if that can change its value.

Typer 0.29 converts every parameter with pydantic, even an option that is not given. Importing
pydantic takes a third as long as a plan. Commands refuse an option with one value that is given
twice.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from rampcli.cli.base import VIEWS, with_base
from rampcli.cli.usage import check_repeated

Command = TypeVar("Command", bound=Callable[..., Any])
STRINGS = (str, str | None, list[str], list[str] | None)


class LightTyper(typer.Typer):
    """An application whose commands get strings and absent options as they are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_LightGroup, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        """Registers a command, as `typer.Typer.command` does."""
        registers = super().command(name, cls=_LightCommand, **settings)

        def register(command: Command) -> Command:
            registers(with_base(command))
            return command

        return register


class _Light:
    callback: Callable[..., Any] | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters. They skip conversions that cannot change a value."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            is_string = _types(self.callback).get(one.name) in STRINGS
            one.process_value = partial(_process_value, one, is_string)
        return parameters


class _LightCommand(_Light, TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = with_views(args)
        check_repeated(self.params, args)
        return super().parse_args(ctx, args)


class _LightGroup(_Light, TyperGroup):
    pass


def with_views(args: Sequence[str]) -> list[str]:
    """Returns words in which each `--cfg` has a value: the first view if none is named."""
    words: list[str] = []
    for index, word in enumerate(args):
        words.append(word)
        if word in ("--cfg", "-c") and args[index + 1 : index + 2] != ["--"]:
            following = args[index + 1] if index + 1 < len(args) else ""
            words += [] if following in VIEWS else [VIEWS[0]]
    return words


def _process_value(parameter: Any, is_string: bool, ctx: Any, value: Any) -> Any:
    """Returns the same value as the parameter's own `process_value`, and raises the same errors."""
    is_missing = parameter.required and not value
    if is_missing or (value is not None and not is_string):
        return type(parameter).process_value(parameter, ctx, value)
    if value is None and (parameter.multiple or parameter.nargs == -1):
        value = ()
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


@cache
def _types(command: Callable[..., Any] | None) -> dict[str, Any]:
    return get_type_hints(command) if command else {}
