"""`KEY=VALUE` words, as they are typed on a command line and in a recipe."""

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer
from hydra.errors import HydraException

from rampcli.config.settings import settings, shown, unknown_key
from rampcli.errors import Report, UsageError

LONGEST_VALUE = 5000
MOST_PARTS = 300
MOST_VALUES = 100
_CAST = re.compile(r"\b(int|float|bool|str|json_str)\(")
_ASSIGNMENT = re.compile(r"[+~]*[A-Za-z_][\w.]*=")


def join_split_lists(words: Iterable[str], *, report: Report) -> list[str]:
    """Put lists together again that the shell split at spaces: `key=[256,`, `128,`, `50000000]` is one word.

    A bracket that is not closed before the next `KEY=` goes to the report.
    """
    joined: list[str] = []
    open_word = ""
    for word in (*words, None):
        if open_word and (word is None or _ASSIGNMENT.match(word)):
            with report.noting():
                raise UsageError(
                    f"the bracket in {open_word} is never closed",
                    keys=(open_word.partition("=")[0],),
                    remedy=typeable(f"{open_word}]"),
                    set_by=("command line",),
                )
            open_word = ""
        if word is not None:
            open_word = f"{open_word} {word}" if open_word else word
            if open_word.count("[") <= open_word.count("]"):
                joined.append(open_word)
                open_word = ""
    return joined


def parse(
    words: Sequence[str],
    *,
    groups: Collection[str],
    place: str,
    report: Report,
    unique: bool = True,
) -> dict[str, Any]:
    """`KEY=VALUE` words as a mapping, values in Hydra's grammar; a word with an error goes to the report.

    Args:
        words: the words.
        groups: names of config groups.
        place: where the words come from, for errors.
        report: takes words that are none, keys that do not exist, values that cannot be read, and (where `unique`) keys with two values.
        unique: whether a key may stand once only.
    """
    values: dict[str, Any] = {}
    for word in words:
        with report.noting():
            try:
                key, value = _read(word, groups)
                if unique and key in values and values[key] != value:
                    raise UsageError(
                        f"{key} is given twice: {shown(values[key])} and {shown(value)}",
                        keys=(key,),
                        remedy="one of them",
                    )
            except UsageError as error:
                error.set_by = error.set_by or (place,)
                raise
            values.pop(key, None)  # the last one stands last
            values[key] = value
    return values


def read_values(word: str, groups: Collection[str]) -> tuple[str, list[Any]]:
    """A word with several values, `KEY=8,16,32`: the key, and the values as they are typed.

    Raises:
        UsageError: as `parse`.
    """
    key, override = _override(word, groups)
    values = _sweep(override) if override.is_sweep_override() else [shown(override.value())]
    if not values or len(values) > MOST_VALUES:
        raise UsageError(
            f"{word}: wants from 1 to {MOST_VALUES} values", keys=(key,), remedy=f"{key}=A,B,C"
        )
    return key, values


def _sweep(override: Any) -> list[str]:
    """The first values of `8,16,32` or `range(8,32,8)`, as they are typed; none where they are not listed, as in `interval(0,1)`."""
    try:
        values = islice(override.sweep_iterator(transformer=Transformer.identity), MOST_VALUES + 1)
        return [value.text if isinstance(value, QuotedString) else shown(value) for value in values]
    except HydraException:
        return []


def _read(word: str, groups: Collection[str]) -> tuple[str, Any]:
    key, override = _override(word, groups)
    if not override.is_sweep_override():
        return key, override.value()
    text, kind = word.partition("=")[2], settings()[key].type if key in settings() else None
    if kind is str:  # a comma in a text is a comma
        return key, text
    one = next(iter(_sweep(override)), None)
    remedy = _example(key) if one is None else typeable(f"{key}={one}")
    if get_origin(kind) is list and "[" not in text:
        remedy = f"brackets: {typeable(f'{key}=[{text}]')}"
    raise UsageError(f"{word}: one run has one value", keys=(key,), remedy=remedy)


def _override(word: str, groups: Collection[str]) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    name = key.lstrip("+~")
    if (not equals or not key) and key == name:
        raise UsageError(f"{word!r} is not KEY=VALUE", remedy=_as_assignment(word))
    if key != name:
        known = (
            {name: "null"}
            if name in settings()
            else {group: "OPTION" for group in groups if group == name}
        )
        raise UsageError(
            f"{word}: settings are neither added nor deleted, they all exist",
            keys=(name,),
            remedy=f"{name}={text or known[name]}" if known else None,
        )
    if key not in settings() and key not in groups:
        raise unknown_key(key, dict.fromkeys(groups))
    if len(text) > LONGEST_VALUE or max(map(text.count, "[{(,")) > MOST_PARTS:
        raise UsageError(
            f"{word} is too long to be a value", keys=(key,), remedy="a file in --config-dir"
        )
    if _CAST.search(text) and key in settings() and settings()[key].type is not str:
        raise UsageError(f"{word}: a value is not converted", keys=(key,), remedy=_example(key))
    try:
        return key, OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read the value in {word}", keys=(key,), remedy=_readable(key, text)
        ) from error


def _as_assignment(word: str) -> str:
    if word.startswith("--") and word[2:].replace("-", "_") in settings():
        return f"{word[2:].replace('-', '_')}=VALUE"
    return "rampcli pretrain --factory NAME KEY=VALUE"


def _readable(key: str, text: str) -> str | None:
    for opening, closing in ("[]", "{}", "()"):
        if text.count(opening) > text.count(closing):
            return f"closing the bracket: {typeable(f'{key}={text}{closing}')}"
    if key in settings() and settings()[key].type is not str:
        return _example(key)
    return f"quotes: {typeable(f'{key}={quoted(text)}')}"


def _example(key: str) -> str | None:
    return settings()[key].example() if key in settings() else None


def quoted(text: str) -> str:
    """`text` as a string in Hydra's grammar, which reads a backslash as itself unless a quote follows."""
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def as_option(group: str, option: Any) -> str:
    """`GROUP=OPTION` in Hydra's grammar, whatever the name of the option looks like."""
    return f"{group}={quoted(shown(option))}"


def typeable(word: str) -> str:
    """A word as a shell takes it."""
    return (
        f'"{word}"'
        if "'" in word and not re.search(r"""["$`!]|\\(?!')""", word)
        else shlex.quote(word)
    )
