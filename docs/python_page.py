"""The page of rampcli's Python names: their signatures and docstrings as Markdown."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from types import FunctionType
from typing import Any

import rampcli
from rampcli import errors, extend, llm
from rampcli.batch.ramp import RampStage
from rampcli.launch.protocol import Outcome
from rampcli.runs.metrics import Chart, Metric
from rampcli.runs.record import RunRecord
from rampcli.runs.time_spent import TimeSpent
from rampcli.settings.by_key import settings
from rampcli.settings.config import Config
from rampcli.train.observers.model_observer import ModelInStep, ModelObserver

INTRODUCTION = """# Python

`import rampcli` imports a name of this page on its first use. torch is imported only by the
processes that train. [Train from Python](../guides/python.md) shows how the names work together.
"""
RETURNED: dict[str, tuple[type, ...]] = {
    "run": (Outcome,),
    "read_run": (RunRecord, TimeSpent),
    "RampSchedule": (RampStage,),
}
"""Classes that are shown below the name that returns their objects."""
OF_OBSERVERS = (ModelObserver, ModelInStep, Metric, Chart)
"""Classes that an observer of `rampcli.extend` needs."""
ORDER = (
    *("llm", "compose", "from_hydra", "plan", "print_plan", "run", "Observer", "read_run"),
    *("BatchPlan", "RampSchedule"),
)
"""The public names, in the order of their use. Others follow."""
RECIPE_ARGUMENTS = "(num_nodes=..., num_gpus_per_node=...) -> Config"
CONFIG = """
## `rampcli.Config`

The settings of a run, as plain data that you can change: `recipe.trainer.max_samples = 200`.
[Settings](config.md) explains each of them. The [spellings of other
systems](config.md#spellings-of-other-systems) are attributes, too.

| attribute | class | settings |
|---|---|---|
"""
EXTEND = """
## `rampcli.extend`

Decorators that register parts of your own under a name: [Add parts of your
own](../guides/extend.md) shows how to use them.
"""
ERRORS = """
## Errors

Each error is a `rampcli.errors.RampcliError`. `print(error)` shows the text that a command prints.

| class | exit code | meaning |
|---|---|---|
"""
SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?:    .*\n?|\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
LONGEST_SIGNATURE = 96
NUMPY_ARRAY = "ndarray[tuple[Any, ...], dtype[Any]]"


def python_page() -> str:
    """Returns the page: a section for each public name, the settings and the errors."""
    parts = [INTRODUCTION]
    for name in (*ORDER, *sorted({*rampcli.__all__} - {*ORDER, "Config"})):
        parts += _recipes() if name == "llm" else _named(name, getattr(rampcli, name))
        for returned in RETURNED.get(name, ()):
            parts += [f"\n### `{returned.__name__}`\n", *_class(returned)]
        if name == "compose":
            parts += _config()
    return "".join((*parts, *_extend(), *_errors()))


def _recipes() -> Iterator[str]:
    yield "\n## `rampcli.llm`\n"
    for name, composes in _properties(llm.Recipe):
        yield _signed(f"llm.NAME.{name}{RECIPE_ARGUMENTS}", composes)
        yield _table(
            "argument", [_row(f"`{name}`", "`int`", text) for name, text in _entries(composes)]
        )
    for function in (llm.recipe_names, llm.from_factory):
        yield from _function(f"llm.{function.__name__}", function)


def _extend() -> Iterator[str]:
    yield EXTEND
    for name in extend.__all__:
        public = getattr(extend, name)
        if inspect.isclass(public):
            yield f"\n### `{name}`\n"
            yield from _class(public)
        else:
            yield from _function(f"extend.{name}", public)
    for public in OF_OBSERVERS:
        yield f"\n### `{public.__module__}.{public.__name__}`\n"
        yield from _class(public)


def _config() -> Iterator[str]:
    yield CONFIG
    sections = {key.partition(".")[0] for key in settings()}
    for part in dataclasses.fields(Config):
        if dataclasses.is_dataclass(part.type) and part.name in sections:
            link = f"[`{part.name}`](config.md#{part.name})"
            yield _row(link, _type(part.type), _first_paragraph(part.type))


def _errors() -> Iterator[str]:
    yield ERRORS
    for error in vars(errors).values():
        if inspect.isclass(error) and issubclass(error, errors.RampcliError):
            yield _row(f"`{error.__name__}`", str(error.exit_code), _first_paragraph(error))
    yield "\nAttributes of an error:\n\n" + _items(_entries(errors.RampcliError))


def _named(name: str, public: Any) -> Iterator[str]:
    yield f"\n## `rampcli.{name}`\n"
    yield from _class(public) if inspect.isclass(public) else _function(f"rampcli.{name}", public)


def _class(shown: type) -> Iterator[str]:
    """Describes a class: its attributes and properties as a table, then its methods."""
    yield f"\n{_prose(shown)}\n"
    rows = []
    for one in reversed(shown.__mro__):
        types = inspect.get_annotations(one)
        rows += [
            _row(f"`{name}`", _type(types.get(name, "")), text) for name, text in _entries(one)
        ]
        for name, getter in _properties(one):
            kind = inspect.signature(getter).return_annotation
            rows.append(_row(f"`{name}`", _type(kind), _first_paragraph(getter)))
    yield _table("attribute", rows)
    for name, member in vars(shown).items():
        if isinstance(member, (classmethod, FunctionType)) and not name.startswith("_"):
            yield from _function(f"{shown.__name__}.{name}", getattr(shown, name))


def _properties(shown: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the public properties of a class with their functions."""
    for name, member in vars(shown).items():
        if isinstance(member, (property, cached_property)) and not name.startswith("_"):
            yield name, getattr(member, "func", None) or member.fget


def _function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Describes a function: its signature, what it does, its arguments and its errors."""
    signature = inspect.signature(function)
    given = [one for one in signature.parameters.values() if one.name != "self"]
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in given]
    arguments = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    returned = _type(signature.return_annotation).strip("`")
    line = f"{name}{arguments} -> {returned}".removesuffix(" -> None")
    if len(line) > LONGEST_SIGNATURE:
        inner = ",\n    ".join(arguments[1:-1].split(", "))
        line = line.replace(arguments, f"(\n    {inner},\n)")
    yield _signed(line, function)
    types = {one.name: _type(one.annotation) for one in given}
    rows = [
        _row(f"`{names.replace(', ', '`, `')}`", types[names.partition(",")[0]], text)
        for names, text in _entries(function)
    ]
    yield _table("argument", rows)
    if raised := _entries(function, "Raises"):
        yield "\nRaises:\n\n" + _items(raised)


def _signed(signature: str, described: Any) -> str:
    return f"\n```python\n{signature}\n```\n\n{_prose(described)}\n"


def _prose(described: Any) -> str:
    """Returns a docstring without its sections."""
    return SECTION.sub("", inspect.getdoc(described) or "").strip()


def _first_paragraph(described: Any) -> str:
    return " ".join(_prose(described).partition("\n\n")[0].split())


def _entries(described: Any, *sections: str) -> list[tuple[str, str]]:
    """Returns the names and texts in these sections of a docstring; default: what it takes."""
    return [
        (name, text[0].upper() + re.sub(r"\s+", " ", text[1:]))
        for section, entries in SECTION.findall(inspect.getdoc(described) or "")
        if section in (sections or ("Args", "Attributes"))
        for name, text in ENTRY.findall(entries)
    ]


def _type(annotation: Any) -> str:
    """Returns a type as code, without names of modules. Without a type, the text is empty."""
    if annotation in ("", inspect.Parameter.empty):
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"[a-z_]+[.]|~", "", text).replace(NUMPY_ARRAY, "NDArray")
    return f"`{text}`"


def _items(entries: list[tuple[str, str]]) -> str:
    return "".join(f"* `{name}`: {text}\n" for name, text in entries)


def _table(first: str, rows: list[str]) -> str:
    return f"\n| {first} | type | meaning |\n|---|---|---|\n{''.join(rows)}" if rows else ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
