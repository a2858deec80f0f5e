"""Resolves references, such as `${model.hidden_size}` and `${oc.env:LR,1e-3}`, by OmegaConf.

Only the resolvers named here are known. None of them runs code.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any

from rampcli.batch.quantities import listed
from rampcli.errors import UsageError, printable, shown
from rampcli.settings.by_key import flatten, nest, settings
from rampcli.words import SPELLINGS, WRAPPER, unwrapped, wrapped
from rampcli.words.formats import Unresolved as Unresolved

MISSING = "???"
"""The value of a setting that another file or word must set."""
SECRET = re.compile(r"TOKEN|KEY|PASSW|SECRET|CREDENTIAL", re.IGNORECASE)
"""Parts of the names of environment variables that no configuration may hold."""
_SELECTED = re.compile(r"\$\{oc\.(?:select|dict\.\w+):\s*([\w.]+)")
"""A key that a resolver names, which has a default of its own if nobody sets the key."""


def _of_numbers(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a resolver that takes numbers only: a text times a number could fill the memory."""

    def resolver(*numbers: Any) -> Any:
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise UsageError(
                    f"computes with {printable(shown(number))}, which is not a number",
                    remedy="numbers",
                )
        return compute(*numbers)

    return resolver


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": _of_numbers(lambda *numbers: sum(numbers)),
    "subtract": _of_numbers(lambda a, b: a - b),
    "multiply": _of_numbers(lambda *numbers: reduce(lambda a, b: a * b, numbers, 1)),
    "divide": _of_numbers(lambda a, b: a / b),
    "divide_floor": _of_numbers(lambda a, b: a // b),
    "divide_ceil": _of_numbers(lambda a, b: -(-a // b)),
}
"""Resolvers that files of other systems use, with their meaning there.

To add a resolver of references: an entry here.
"""
LONGEST_RESOLVED, DEEPEST = 100_000, 50
"""Characters that a value with references may come to, and levels of references in references."""
_LONG = (
    "is too long, or refers too deeply or in a circle",
    "fewer references in each other",
)
_WHOLE = (
    f"names {WRAPPER} as a whole, and only the sections in it can be named",
    f"${{{wrapped('model')}}}, or another section in it",
)
_NAMED = re.compile(r"\$\{\s*(\.*[\w.\[\]]+)\s*\}")
OMEGACONF = ("oc.env", "oc.select", "oc.decode", "oc.dict.keys", "oc.dict.values")
"""Resolvers of OmegaConf that are known."""


def has_reference(value: Any) -> bool:
    """Returns whether a value, or an item of a list or mapping, has a reference."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, Mapping):
        return any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


def resolved(values: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Resolves the references in some values.

    A reference may name any of the values, a setting's default, or another system's spelling of a
    setting.

    Returns:
        The value of each key that has a reference, or an `Unresolved`. A reference to a section
        gives the keys below it. And all keys that references name.
    """
    written = {key: value for key, value in values.items() if has_reference(value)}
    named: set[str] = set()
    needed: set[str] = set()
    found: dict[str, Any] = {}
    for key, value in written.items():
        try:
            for text in _texts(value):
                names, resolvers = _parsed(text, key)
                absolute = {_absolute(name, key) for name in names}
                selected = {_absolute(name, key) for name in _SELECTED.findall(text)}
                needed, named = needed | absolute, named | selected
                _check_resolvers(resolvers, key)
                if WRAPPER in absolute | selected and WRAPPER not in values:
                    raise _wrong(key, shown(value), *_WHOLE)
        except UsageError as error:
            found[key] = Unresolved(shown(value), error)
    for key in _too_long(written):
        if key not in found:
            found[key] = Unresolved(shown(written[key]), _wrong(key, shown(written[key]), *_LONG))
    own = {key for key in values if any(one in written for one in above(key))}
    with _known_resolvers():
        tree = _tree({k: v for k, v in values.items() if k not in found and k not in own}, needed)
        for key in written.keys() - found.keys() - own:
            try:
                value = _value(tree, key, shown(written[key]))
                expanded = flatten({key: value})
                found |= {one: each for one, each in expanded.items() if one not in own}
            except UsageError as error:
                found[key] = Unresolved(shown(written[key]), error)
    return found, frozenset(map(unwrapped, named | needed))


def check_readable(value: Any, key: str) -> None:
    """Checks that the references in the value of a key are in OmegaConf's grammar.

    Raises:
        UsageError: one is not.
    """
    for text in _texts(value):
        _parsed(text, key)


def is_below(key: str, other: str) -> bool:
    """Returns whether a key is another key, or in the section that the other key is."""
    return key == other or key.startswith(f"{other}.")


def named_in(values: Mapping[str, Any]) -> set[str]:
    """Returns the keys that the references in some values name, by dotted key."""
    return {
        unwrapped(_absolute(name, key))
        for key, value in values.items()
        for text in _texts(value)
        for name in (*_parsed(text, key)[0], *_SELECTED.findall(text))
    }


def above(key: str) -> Iterator[str]:
    """Yields the sections that a key is in: `a.b` and `a` for `a.b.c`."""
    while key := key.rpartition(".")[0]:
        yield key


def _too_long(written: Mapping[str, Any]) -> Iterator[str]:
    """Yields keys whose references would repeat others so often that they fill the memory."""
    texts = {key: [*_texts(value)] for key, value in written.items()}
    names = {
        key: [unwrapped(_absolute(name, key)) for text in one for name in _NAMED.findall(text)]
        for key, one in texts.items()
    }
    sizes: dict[str, tuple[int, int]] = {}  # characters and levels

    def size(key: str, level: int) -> tuple[int, int]:
        if key not in written or level > 2 * DEEPEST:
            return 0, 0 if key not in written else level
        if key not in sizes:
            below = [size(name, level + 1) for name in names[key]]
            length = sum(map(len, texts[key])) + sum(one for one, _ in below)
            sizes[key] = length, 1 + max((deep for _, deep in below), default=0)
        return sizes[key]

    for key in written:
        length, levels = size(key, 0)
        if (length > LONGEST_RESOLVED or levels > DEEPEST) and not _is_circular(key, names):
            yield key


def _is_circular(key: str, names: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether the references of a key lead back to it, which OmegaConf notices."""
    seen: set[str] = set()
    waiting = list(names[key])
    while waiting:
        name = waiting.pop()
        if name == key:
            return True
        if name not in seen:
            seen.add(name)
            waiting += names.get(name, ())
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if has_reference(value):
            yield value
    elif isinstance(value, list | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


@lru_cache(maxsize=500)
def _parsed(text: str, key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys and the resolvers that the references of a text name, as it writes them.

    A text is asked for when its file is read, when words are read and when it is resolved.

    Raises:
        UsageError: it is not in OmegaConf's grammar.
    """
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    try:
        nodes = [parse(text)]
    except (GrammarParseError, RecursionError) as error:
        raise UsageError(
            f"{key}={printable(text)}: the reference cannot be read",
            keys=(key,),
            remedy=r"${section.key}, or \${ for the characters themselves",
        ) from error
    keys, resolvers = [], []
    while nodes:
        node = nodes.pop()
        kind = type(node).__name__
        if kind == "InterpolationNodeContext":
            keys.append(node.getText()[2:-1])
        elif kind == "ResolverNameContext":
            resolvers.append(node.getText())
        nodes += list(getattr(node, "children", None) or [])
    return tuple(keys), tuple(resolvers)


def _absolute(name: str, key: str) -> str:
    """Returns the key that a reference in a value means: `.x` is beside the value's own key."""
    name = re.sub(r"\[(\w+)\]", r".\1", name)
    ups = len(name) - len(name.lstrip("."))
    parents = key.split(".")[:-ups] if ups else []
    return ".".join([*parents, name[ups:]])


def _check_resolvers(resolvers: Collection[str], key: str) -> None:
    known = [*OMEGACONF, *ARITHMETIC]
    for name in resolvers:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"{key}: there is no resolver {printable(name)} here",
                keys=(key,),
                remedy=near or f"the value itself, or one of {listed(known)}",
            )


def _tree(values: Mapping[str, Any], named: Collection[str]) -> Any:
    """Returns values as OmegaConf's tree, with the defaults and spellings that are named."""
    from omegaconf import OmegaConf

    known = dict(values)
    for name in named:
        if (inside := unwrapped(name)) != name:
            # The values leave out the section, and references may name it.
            section = inside.partition(".")[0]
            known[wrapped(section)] = f"${{{section}}}"
        ours = SPELLINGS.get(inside, inside)
        if inside not in known and ours in settings():
            known[inside] = known.get(ours, settings()[ours].default)
    return OmegaConf.create(nest(known))


def _value(tree: Any, key: str, text: str) -> Any:
    """Returns the value of a key in a tree. `text` is the value as it was written, for messages.

    Raises:
        UsageError: a reference names nothing, or cannot be computed.
    """
    from omegaconf import Container, OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    problem, remedy = "cannot be computed", "the value itself"
    try:
        value = OmegaConf.select(tree, key, throw_on_missing=True)
        return (
            OmegaConf.to_container(value, resolve=True) if isinstance(value, Container) else value
        )
    except InterpolationKeyError as error:
        if match := re.search(r"Interpolation key '([^']*)'", str(error)):
            near = difflib.get_close_matches(match[1], [*settings()], n=2)
            problem = f"names {match[1]}, which is not set"
            remedy = (
                " or ".join(f"${{{one}}}" for one in near) or f"{match[1]}, set in the same file"
            )
        raise _wrong(key, text, problem, remedy) from error
    except (OmegaConfBaseException, RecursionError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UsageError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            problem, remedy = cause.message, cause.remedy or remedy
        elif "Recursive" in str(error) or isinstance(error, RecursionError):
            problem = "refers to itself"
        elif "Missing" in type(error).__name__:
            problem = f"names a value that is {MISSING}"
        raise _wrong(key, text, problem, remedy) from error


def _wrong(key: str, text: str, problem: str, remedy: str) -> UsageError:
    return UsageError(f"{key}={printable(text)} {problem}", keys=(key,), remedy=remedy)


def _environment(name: str, *default: Any) -> Any:
    """Returns the value of an environment variable, or the default, as `oc.env` does.

    Raises:
        UsageError: the variable is not set, or its name says that it is secret.
    """
    if SECRET.search(name):
        raise UsageError(
            f"would write the secret {name} into the run directory",
            remedy="the program that needs it reads it from the environment",
        )
    if name not in os.environ and not default:
        raise UsageError(
            f"names {name}, which is not in the environment",
            remedy=f"${{oc.env:{name},DEFAULT}}",
        )
    return os.environ[name] if name in os.environ else default[0]


@contextmanager
def _known_resolvers() -> Iterator[None]:
    """Registers our resolvers for the body. Those of the process are as before afterwards."""
    from omegaconf import OmegaConf
    from omegaconf.basecontainer import BaseContainer

    kept = dict(BaseContainer._resolvers)
    for name, function in {**ARITHMETIC, "oc.env": _environment}.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    try:
        yield
    finally:
        BaseContainer._resolvers = kept
