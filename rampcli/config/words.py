"""`KEY=VALUE` words, as they are typed on a command line and in a recipe."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer
from hydra.errors import HydraException

from rampcli.config.settings import settings, shown, unknown_key
from rampcli.errors import Report, UsageError

LONGEST_SHOWN = 200
LONGEST_VALUE = 5000
MOST_BRACKETS = 300
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
                raise _unclosed(open_word)
            open_word = ""
        if word is not None:
            open_word = f"{open_word} {word}" if open_word else word
            if open_word.count("[") <= open_word.count("]"):
                joined.append(open_word)
                open_word = ""
    return joined


def _unclosed(word: str) -> UsageError:
    error = UsageError(f"the bracket in {_cut(word)} is never closed", keys=(word.partition("=")[0],), remedy=f"'{_cut(word)}]'")
    error.set_by = ("command line",)
    return error


def parse(words: Sequence[str], *, groups: Collection[str], place: str, report: Report, unique: bool = True) -> dict[str, Any]:
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
                    raise UsageError(f"{key} is given twice: {shown(values[key])} and {shown(value)}", keys=(key,), remedy="one of them")
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
    if not override.is_sweep_override():
        return key, [shown(override.value())]
    values = override.sweep_iterator(transformer=Transformer.identity)
    return key, [value.text if isinstance(value, QuotedString) else shown(value) for value in values]


def _read(word: str, groups: Collection[str]) -> tuple[str, Any]:
    key, override = _override(word, groups)
    if not override.is_sweep_override():
        return key, override.value()
    if key in settings() and settings()[key].type is str:  # a comma in a text is a comma
        return key, word.partition("=")[2]
    raise UsageError(f"{_cut(word)}: one run has one value", keys=(key,), remedy=f"{key}={word.partition('=')[2].partition(',')[0]}")


def _override(word: str, groups: Collection[str]) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    name = key.lstrip("+~")
    if (not equals or not key) and key == name:
        raise UsageError(f"{_cut(word)!r} is not KEY=VALUE", remedy=_as_assignment(word))
    if key != name:
        raise UsageError(
            f"{_cut(word)}: settings are neither added nor deleted, they all exist",
            keys=(name,),
            remedy=f"{name}={text or 'null'}" if name in settings() else None,
        )
    if key not in settings() and key not in groups:
        raise unknown_key(_cut(key), dict.fromkeys(groups))
    if len(text) > LONGEST_VALUE or max(map(text.count, "[{(")) > MOST_BRACKETS:
        raise UsageError(f"{_cut(word)} is too long to be a value", keys=(key,), remedy="a file in --config-dir")
    try:
        return key, OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the value in {_cut(word)}", keys=(key,), remedy=_cut(_readable(key, text))) from error


def _as_assignment(word: str) -> str:
    if word.startswith("--") and word[2:].replace("-", "_") in settings():
        return f"{word[2:].replace('-', '_')}=VALUE"
    return "rampcli pretrain --factory NAME KEY=VALUE"


def _readable(key: str, text: str) -> str:
    for opening, closing in ("[]", "{}", "()"):
        if text.count(opening) > text.count(closing):
            return f"closing the bracket: '{key}={text}{closing}'"
    return f"quotes: \"{key}='{text}'\""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def quoted(text: str) -> str:
    """`text` as a string in Hydra's grammar."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
