"""Typer applications that give commands the options of `Base`, and start quickly.

Typer 0.29 converts every parameter with pydantic, even an option that is not given. Importing
pydantic takes a third as long as a plan. So these applications convert a parameter only if that can
change its value. Commands refuse an option with one value that is given twice.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial, wraps
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from rampcli.cli.base import INFO, SOURCES_VIEW, VIEWS, Base
from rampcli.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
WORD_PARAMETERS = ("overrides", "rl_overrides", "keys")
"""Names of the parameters that take `KEY=VALUE` words."""
HELP = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""The entry of a parameter in a docstring, with its name and its text."""
STRINGS = (str, str | None, list[str], list[str] | None)


class LightTyper(typer.Typer):
    """An application whose commands get strings and absent options as they are."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_LightGroup, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        """Registers a command, as `typer.Typer.command` does, with the texts of its docstring."""
        registers = super().command

        def register(command: Command) -> Command:
            text = take_helps(command)
            registers(name, cls=_LightCommand, help=text, **settings)(_with_base(command))
            return command

        return register


def take_helps(described: Callable[..., Any]) -> str | None:
    """Gives options the help texts that a docstring has for them, and returns the text before."""
    text, *parts = re.split(r"\n\n(?:Args|Attributes):\n", inspect.getdoc(described) or "")
    hints = get_type_hints(described, include_extras=True)
    for name, words in HELP.findall("".join(parts)):
        (option,) = hints[name].__metadata__
        option.help = " ".join(words.split())
    return text or None


take_helps(Base)


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
        return super().parse_args(ctx, with_views(args))

    def make_parser(self, ctx: Any) -> Any:
        """Returns the parser of Typer, which here refuses a second value of an option with one."""
        parser: Any = super().make_parser(ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            option.process = partial(_take_once, option)
        return parser


class _LightGroup(_Light, TyperGroup):
    pass


def _take_once(option: Any, value: Any, state: Any) -> None:
    """Takes an option of the command line with its value, unless it has one already."""
    if option.action == "store" and option.dest in state.opts:
        name = option.obj.opts[0]
        raise UsageError(
            f"{name} is given twice: {state.opts[option.dest]} and {value}",
            remedy=f"{name} {shlex.quote(value)}",
        )
    type(option).process(option, value, state)


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


def _with_base(command: Command) -> Command:
    """Returns a command whose parameter `base` is replaced by the options of `Base`.

    It answers `--cfg`, `--info` and `--multirun` itself.
    """
    hints = get_type_hints(command, include_extras=True)
    if hints.get("base") is not Base:
        return command
    own = inspect.signature(command).parameters
    options = {one.name: one for one in fields(Base)}
    kinds = get_type_hints(Base, include_extras=True)

    @wraps(command)
    def wrapped(**given: Any) -> None:
        base = Base(**{name: given.pop(name) for name in options})
        words = next((given[name] or [] for name in WORD_PARAMETERS if name in given), [])
        retunes, as_json = given.get("retune", False), given.get("as_json", False)
        _check(base, command.__name__, as_json=as_json, retunes=retunes)
        if base.cfg is not None or base.info is not None:
            from rampcli.cli.showing import show

            show(base, words, is_rl=command.__name__ == "rl", retunes=retunes)
        elif base.multirun and command.__name__ != "sweep":
            from rampcli.cli.sweep import sweep

            _check_only(own, given, ("overrides", "dry_run", "as_json"))
            sweep(
                base,
                words,
                dry_run=given.get("dry_run", True),
                as_json=as_json,
            )
        else:
            command(base=base, **given)

    parameters = [
        *(one for name, one in own.items() if name != "base"),
        *(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=kinds[name]
            )
            for name, one in options.items()
        ),
    ]
    wrapped.__annotations__ = {
        one.name: hints.get(one.name, kinds.get(one.name)) for one in parameters
    }
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def _check_only(
    own: Mapping[str, inspect.Parameter], given: Mapping[str, Any], allowed: Sequence[str]
) -> None:
    """Checks that options which a sweep does not have are not given with `--multirun`.

    Raises:
        UsageError: one is.
    """
    for name, value in given.items():
        if name not in allowed and value != own[name].default:
            option = f"--{name.removeprefix('show_').replace('_', '-')}"
            raise UsageError(
                f"{option} is about one run, and --multirun asks for several",
                remedy=f"{option} without --multirun",
            )


def _check(base: Base, command: str, *, as_json: bool, retunes: bool) -> None:
    """Checks options that exclude each other, or that need another.

    Raises:
        UsageError: they do not fit together.
    """
    if base.factory and (base.config_name or base.config_path):
        other = "--config-name" if base.config_name else "--config-path"
        raise UsageError(
            f"--factory {base.factory} and {other} both name what is composed",
            remedy="one of them",
        )
    if base.cfg not in (None, *VIEWS):
        raise UsageError(f"there is no --cfg {base.cfg}", remedy=f"--cfg {' or '.join(VIEWS[1:])}")
    if base.info not in (None, *INFO):
        raise UsageError(f"there is no --info {base.info}", remedy=f"--info {' or '.join(INFO)}")
    if as_json and (base.cfg is not None or base.info is not None):
        option = "--cfg" if base.cfg is not None else "--info"
        raise UsageError(f"{option} prints no JSON", remedy=f"{option} without --json")
    if retunes and (base.cfg not in (None, SOURCES_VIEW) or base.info):
        raise UsageError(
            "--retune follows from the plan, which is not made to print what was composed",
            remedy="--cfg --retune",
        )
    if base.package is not None and base.cfg is None:
        raise UsageError(
            f"--package {base.package} is a part of what --cfg prints",
            remedy=f"--cfg job --package {base.package}",
        )
    if base.resolve and base.cfg in (None, SOURCES_VIEW):
        raise UsageError("--resolve says how --cfg job prints", remedy="--cfg job --resolve")
    if base.multirun and command not in ("pretrain", "plan", "sweep"):
        raise UsageError(
            f"rampcli {command} takes one run, and --multirun asks for several",
            remedy="rampcli sweep",
        )
