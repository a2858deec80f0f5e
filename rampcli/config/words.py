"""Parses `KEY=VALUE` words of a command line or a recipe."""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, get_origin

from rampcli.config.layers import placed
from rampcli.config.plain_words import is_plain, value_of
from rampcli.config.settings import find_setting, is_mapping, settings, unknown_key
from rampcli.errors import Report, UsageError, shown

LONGEST_VALUE = 5000
MOST_PARTS = 300
MOST_VALUES = 100
_CAST = re.compile(r"\b(int|float|bool|str|json_str)\(")
_ASSIGNMENT = re.compile(r"[+~]*[A-Za-z_][\w.]*=")
_NAME = re.compile(r"[{,]\s*([^\s{},:]+)\s*:")
_LAUNCHER_SECTION = re.compile(r"^([+~]*)(training\.)+")


def drop_launcher_section(word: str) -> str:
    """Returns a key or `KEY=VALUE` without a leading `training.`.

    NeMo's launcher keeps the settings of a run in this section.
    """
    return _LAUNCHER_SECTION.sub(r"\1", word)


def join_split_lists(words: Iterable[str], *, report: Report) -> list[str]:
    """Joins lists that the shell split at spaces: `key=[256,`, `128,`, `50000000]` become one word.

    Mappings are joined too, even if the shell expanded them to `key=a:x`, `key=b:y`. A bracket
    that is not closed before the next `KEY=` is reported. A leading `training.` is dropped.
    """
    joined: list[str] = []
    open_word = ""
    for word in (*map(drop_launcher_section, words), None):
        if open_word and (word is None or _ASSIGNMENT.match(word)):
            with report.noting():
                raise UsageError(
                    f"the bracket in {open_word} is never closed",
                    keys=(open_word.partition("=")[0],),
                    remedy=typeable(f"{open_word}{_brackets(open_word)[1]}"),
                    set_by=("command line",),
                )
            open_word = ""
        if word is not None:
            open_word = f"{open_word} {word}" if open_word else word
            opening, closing = _brackets(open_word)
            if open_word.count(opening) <= open_word.count(closing):
                joined.append(open_word)
                open_word = ""
    return _join_expanded(joined)


def _join_expanded(words: Sequence[str]) -> list[str]:
    """Joins neighbouring words `KEY=NAME:VALUE` of a setting that takes a mapping."""
    joined: list[str] = []
    expanded = ""
    for word in words:
        key, _, text = word.partition("=")
        if not (is_mapping(key) and ":" in text) or text.startswith("{"):
            expanded = ""
            joined.append(word)
        elif key == expanded:
            joined[-1] = f"{joined[-1][:-1]},{text}}}"
        else:
            expanded = key
            joined.append(f"{key}={{{text}}}")
    return joined


def _brackets(word: str) -> tuple[str, str]:
    """Returns the brackets around the value of a `KEY=VALUE` word."""
    return ("{", "}") if is_mapping(word.partition("=")[0]) else ("[", "]")


def parse(
    words: Sequence[str],
    *,
    groups: Collection[str],
    place: str,
    report: Report,
    unique: bool = True,
) -> dict[str, Any]:
    """Returns `KEY=VALUE` words as a mapping. Values are read in Hydra's grammar.

    Args:
        words: the words.
        groups: names of config groups.
        place: where the words come from, for errors.
        report: receives the errors; a word with an error is left out.
        unique: whether two different values for one key are an error. Otherwise the last one holds.
    """
    values: dict[str, Any] = {}
    for word in map(drop_launcher_section, words):
        with report.noting(), placed(place):
            key, value = _read(word, groups)
            if unique and key in values and values[key] != value:
                raise UsageError(
                    f"{key} is given twice: {shown(values[key])} and {shown(value)}",
                    keys=(key,),
                    remedy="one of them",
                )
            values.pop(key, None)  # so that the key moves to the end
            values[key] = value
    return values


def read_values(word: str, groups: Collection[str]) -> tuple[str, list[Any]]:
    """Returns the key of a word like `KEY=8,16,32`, and its values as they are typed.

    Raises:
        UsageError: the word cannot be read, or it has no values or too many.
    """
    word = drop_launcher_section(word)
    key = _key(word, groups)
    override = _override(word)
    values = _sweep(override) if override.is_sweep_override() else [shown(override.value())]
    _check_number(word, key, values)
    return key, values


def _check_number(word: str, key: str, values: Sequence[str]) -> None:
    """Checks that a word lists neither no values nor too many.

    Raises:
        UsageError: it does.
    """
    if not values or len(values) > MOST_VALUES:
        raise UsageError(
            f"{word}: takes 1 to {MOST_VALUES} values", keys=(key,), remedy=f"{key}=A,B,C"
        )


def sweep_values(
    word: str, groups: Collection[str], options: Callable[[str], list[str]]
) -> tuple[str, list[str]]:
    """Returns the key of a word, and its values in Hydra's grammar if it lists values to sweep.

    The list is empty if the word gives a single value.

    Args:
        word: `KEY=A,B,C`, `choice(A,B)` or `range(A,B,STEP)`; for a group, also `glob(PATTERN)`.
        groups: names of config groups.
        options: returns the options of a group.

    Raises:
        UsageError: the word cannot be read, or its values cannot be listed.
    """
    from hydra.core.override_parser.types import Glob, IntervalSweep
    from hydra.errors import HydraException

    key = _key(word, groups)
    if is_plain(word):
        return key, []
    override = _override(word)
    if not override.is_sweep_override():
        return key, []
    sweep = override.value()
    if isinstance(sweep, IntervalSweep):
        raise UsageError(
            f"{word}: an interval does not list its values, and a sweep trains each value",
            keys=(key,),
            remedy=typeable(f"{key}={sweep.start:g},{sweep.end:g}"),
        )
    if isinstance(sweep, Glob):
        if not (found := sweep.filter(options(key))):
            raise UsageError(
                f"{word}: no option of {key} matches",
                keys=(key,),
                remedy=f"{key}={','.join(options(key)) or 'A,B,C'}",
            )
        return key, found
    shuffles = getattr(sweep, "shuffle", False)
    if shuffles:
        sweep.shuffle = False
    try:
        values = list(islice(override.sweep_string_iterator(), MOST_VALUES + 1))
    except HydraException:
        values = []
    _check_number(word, key, values)
    if shuffles:
        raise UsageError(
            f"{word}: runs are trained in the order of their values",
            keys=(key,),
            remedy=typeable(f"{key}={','.join(values)}"),
        )
    return key, values


def _sweep(override: Any) -> list[str]:
    """Returns the first values of `8,16,32` or `range(8,32,8)`, as they are typed.

    Values that cannot be listed, as in `interval(0,1)`, give an empty list.
    """
    from hydra.core.override_parser.types import QuotedString, Transformer
    from hydra.errors import HydraException

    try:
        values = islice(override.sweep_iterator(transformer=Transformer.identity), MOST_VALUES + 1)
        return [value.text if isinstance(value, QuotedString) else shown(value) for value in values]
    except HydraException:
        return []


def _read(word: str, groups: Collection[str]) -> tuple[str, Any]:
    key, text = _key(word, groups), word.partition("=")[2]
    if is_plain(word):
        return key, value_of(word)
    override = _override(word)
    if not override.is_sweep_override():
        if is_mapping(key):
            _check_names(word)
        return key, override.value()
    kind = _kind(key)
    if kind is str:  # the value may contain commas
        return key, text
    one = next(iter(_sweep(override)), None)
    remedy = _example(key) if one is None else typeable(f"{key}={one}")
    if get_origin(kind) is list and "[" not in text:
        remedy = f"brackets: {typeable(f'{key}=[{text}]')}"
    raise UsageError(
        f"{word}: a setting takes one value; rampcli sweep trains with each",
        keys=(key,),
        remedy=remedy,
    )


def _check_names(word: str) -> None:
    """Checks that a mapping has no name twice. Hydra's parser keeps only the last one."""
    key, _, text = word.partition("=")
    names = _NAME.findall(text)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{key} names {name} twice", keys=(key,), remedy="another name for one of them"
            )


def _key(word: str, groups: Collection[str]) -> str:
    """Returns the key of a `KEY=VALUE` word whose value is short enough to be parsed.

    Raises:
        UsageError: the word is not KEY=VALUE, or there is no such setting or group.
    """
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
            f"{word}: settings cannot be added or deleted; they all exist",
            keys=(name,),
            remedy=f"{name}={text or known[name]}" if known else None,
        )
    if key not in groups and find_setting(key) is None:
        raise unknown_key(key, dict.fromkeys(groups))
    if len(text) > LONGEST_VALUE or max(map(text.count, "[{(,")) > MOST_PARTS:
        raise UsageError(
            f"{word} is too long to be a value", keys=(key,), remedy="a file in --config-dir"
        )
    if _CAST.search(text) and _kind(key) not in (None, str):
        raise UsageError(
            f"{word}: conversions such as int() are not supported",
            keys=(key,),
            remedy=_example(key),
        )
    return key


def _override(word: str) -> Any:
    """Returns a `KEY=VALUE` word as Hydra parses it.

    Raises:
        UsageError: it is not in Hydra's grammar.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError) as error:
        key, _, text = word.partition("=")
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
    if _kind(key) not in (None, str):
        return _example(key)
    return f"quotes: {typeable(f'{key}={quoted(text)}')}"


def _example(key: str) -> str | None:
    setting = find_setting(key)
    return None if setting is None else setting.example()


def _kind(key: str) -> Any:
    """Returns the type of a setting, or None for a group."""
    setting = find_setting(key)
    return None if setting is None else setting.type


def quoted(text: str) -> str:
    """Returns a text as a quoted string of Hydra's grammar."""
    # The grammar reads a backslash literally unless a quote follows.
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def as_word(key: str, text: str) -> str:
    """Returns `KEY=VALUE` for a setting that takes a text, quoted for a shell."""
    try:
        is_plain = _read(f"{key}={text}", ())[1] == text
    except UsageError:
        is_plain = False
    return typeable(f"{key}={text if is_plain else quoted(text)}")


def as_option(group: str, option: Any) -> str:
    """Returns `GROUP=OPTION` in Hydra's grammar.

    The option is quoted, because it may look like a number.
    """
    return f"{group}={quoted(shown(option))}"


def typeable(word: str) -> str:
    """Returns a word quoted for a shell."""
    return (
        f'"{word}"'
        if "'" in word and not re.search(r"""["$`!]|\\(?!')""", word)
        else shlex.quote(word)
    )
