"""Reads settings as they are written: `KEY=VALUE` words in Hydra's grammar.

Hydra's own parser is imported only for words that need it, because importing it takes half as long
as a plan. Nearly all words have plain values, such as `512`, `3e-4`, `fixed` or `[256,128,50M]`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, get_origin

from rampcli.config.groups import nearest_options
from rampcli.config.layers import placed
from rampcli.config.references import above, has_reference
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, Remedy, UsageError, set_to, shown, typeable
from rampcli.settings.by_key import find_setting, flatten, is_mapping, settings
from rampcli.settings.checks import check_range
from rampcli.settings.phase_keys import is_phase
from rampcli.settings.unknown_keys import choices_in, nearest_keys, unknown_key
from rampcli.words import unwrapped

LONGEST_GRAMMAR_VALUE = 5000
MOST_NESTED_PARTS = 300
MOST_VALUES = 100
_LITERAL = re.compile(r"""[^\s'"\[\](){}$\\,=]([^'"\[\](){}$\\=]*[^\s'"\[\](){}$\\,=])?""")
"""A text that nothing in Hydra's grammar gives another meaning: no quotes, brackets, `$` or `=`."""
_LITERALS = re.compile(r"""\[[^'"\[\](){}$\\=]+\]""")
"""A list of them."""
_LITERAL_MAPPING = re.compile(
    r"""\{[\w./-]+:[^'"\[\](){}$\\,=]+(,\s*[\w./-]+:[^'"\[\](){}$\\,=]+)*\}"""
)
"""A mapping of names to them."""
_CAST = re.compile(r"\b(int|float|bool|str|json_str)\(")
"""Hydra's functions that convert a value."""
_ASSIGNMENT = re.compile(r"[+~]*[A-Za-z_][\w./@:-]*=")
"""The beginning of a word that sets a key."""
_PREFIX = re.compile(r"(\+{0,2}|~)(?=[^+~]|$)")
"""What Hydra's grammar puts before a key: to add it, to add or override it, or to delete it."""
_QUOTED = re.compile(r"""\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
"""A quoted text, or a character that a backslash escapes."""
_NAME = re.compile(r"[{,]\s*([^\s{},:]+)\s*:")
"""A name in a mapping, such as `wiki` in `{wiki: data/wiki}`."""
_NUMBER = r"[-+]?(?:0|[1-9](?:_?[0-9]){0,29})(?:\.[0-9]{1,30})?(?:e[-+]?[0-9]{1,3})?"
_IS_NUMBER = re.compile(_NUMBER, re.IGNORECASE)
_TEXT = r"(?!(?:inf|nan)(?![\w./-]))[a-z_/][\w./-]*|[1-9](?:_?[0-9])*[a-z]"
"""A name, a path or a count such as `50M`. Hydra reads `inf` and `nan` as numbers."""
_ITEM = f"(?:{_NUMBER}|{_TEXT})"
_PLAIN = re.compile(
    rf"[a-z_][\w.]*=(?:{_ITEM}|\[(?:{_ITEM}(?:,{_ITEM})*)?\])", re.ASCII | re.IGNORECASE
)
"""`KEY=ITEM` or `KEY=[ITEM,ITEM]`, which `value_of` reads as Hydra's parser would."""
_CONSTANTS = {"null": None, "true": True, "false": False}
SEARCH_PATH = "hydra.searchpath"


def join_split_lists(words: Iterable[str], *, report: ErrorReport) -> list[str]:
    """Joins lists that the shell split at spaces: `key=[256,`, `128,`, `50000000]` become one word.

    Mappings are joined too, even if the shell expanded them to `key=a:x`, `key=b:y`. A bracket
    that is not closed before the next `KEY=` is reported. A leading `training.` is dropped.
    """
    joined: list[str] = []
    open_word = ""
    for word in (*map(unwrapped, words), None):
        if open_word and (word is None or _ASSIGNMENT.match(word)):
            with report.noting():
                raise UsageError(
                    f"the bracket in {open_word} is never closed",
                    keys=(open_word.partition("=")[0],),
                    remedy=typeable(f"{open_word.rstrip(', ')}{_brackets(open_word)[1]}"),
                    set_by=(f"{open_word} (command line)",),
                )
            open_word = ""
        if word is not None:
            open_word = f"{open_word} {word}" if open_word else word
            opening, closing = _brackets(open_word)
            bare = _QUOTED.sub("", open_word)
            if bare.count(opening) <= bare.count(closing):
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
    return ("{", "}") if is_mapping(word.partition("=")[0]) else ("[", "]")


def parse(
    words: Sequence[str],
    *,
    groups: Collection[str],
    place: str,
    report: ErrorReport,
    unique: bool = True,
    also: Collection[str] = (),
) -> dict[str, Any]:
    """Returns `KEY=VALUE` words as a mapping. Values are read in Hydra's grammar.

    A setting has one meaning with `+`, with `++` and without: its value is set. `~KEY` deletes what
    the files say of it, and stays as `~KEY`. Groups keep what is typed before and after them:
    `+exp`, `~rl`, `optim@model.optim`. A mapping for a section is one for each of its settings.

    Args:
        report: receives the errors; a word with an error is left out.
        unique: whether two different values for one key are an error. Otherwise the last one holds.
        also: keys that are no settings and can be set: those of the files that are composed.
    """
    values: dict[str, Any] = {}
    for word in map(unwrapped, words):
        with report.noting(), placed(f"{word or repr(word)} ({place})"):
            for key, value in _read(word, groups, also).items():
                if unique and key in values and values[key] != value:
                    raise UsageError(
                        f"{key} is given twice: {shown(values[key])} and {shown(value)}",
                        keys=(key,),
                        remedy="one of them",
                    )
                values.pop(key, None)  # so that the key moves to the end
                values[key] = value
    return values


def names_search_path(word: str) -> bool:
    """Returns whether a word names further folders that are searched for groups."""
    return word.lstrip("+").partition("=")[0] == SEARCH_PATH


def group_of(word: str, groups: Collection[str]) -> str | None:
    """Returns the group whose option a word chooses, or None if it sets a setting."""
    key, _, text = word.partition("=")
    name = key.lstrip("+~").partition("@")[0]
    if text.startswith("{") or find_setting(name) is not None:
        return None
    return name if name in groups else None


def is_plain(word: str) -> bool:
    """Returns whether `value_of` can read a `KEY=VALUE` word. Other words need Hydra's parser."""
    return _PLAIN.fullmatch(word) is not None


def value_of(word: str) -> Any:
    """Returns the value of a plain `KEY=VALUE` word."""
    text = word.partition("=")[2]
    if text.startswith("["):
        return [_item(item) for item in text[1:-1].split(",") if item]
    return _item(text)


def _item(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _IS_NUMBER.fullmatch(text):
        return float(text) if set(text.lower()) & {".", "e"} else int(text)
    return text


def listed_values(override: Any) -> list[str]:
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


def _read(word: str, groups: Collection[str], also: Collection[str] = ()) -> dict[str, Any]:
    """Returns what a word sets, by key: one key, or those of a section."""
    key, equals, _ = word.partition("=")
    prefix, name = _split(key)
    if group_of(word, groups) is not None and (equals or prefix == "~"):
        shown_key = f"{prefix[:1]}{name}"
        return {shown_key: _value_in(name, word[len(prefix) :]) if equals else ""}
    if prefix == "~":
        return _deleted(name, word, also)
    name = key_of(word, groups, also)
    value = _value_in(name, word[len(prefix) :])
    if isinstance(value, dict) and find_setting(name) is None:
        keys = {f"{name}.{inside}": one for inside, one in flatten(value).items()}
        adds = "" if any(one.startswith(f"{name}.") for one in settings()) else prefix
        for inside in keys:
            key_of(f"{adds}{inside}=", groups, also)
        return keys
    return {name: value}


def _split(key: str) -> tuple[str, str]:
    """Returns what stands before a key, `+`, `++`, `~` or nothing, and the key."""
    match = _PREFIX.match(key)
    prefix = match[0] if match else ""
    return prefix, key[len(prefix) :]


def _deleted(name: str, word: str, also: Collection[str]) -> dict[str, Any]:
    if is_phase(name):
        return {name: None}
    inside = [key for key in (*settings(), *also) if key.startswith(f"{name}.")]
    if not (find_setting(name) or inside or name in also):
        raise _unknown(name, "", ())
    value = _value_in(name, word[1:]) if "=" in word else None
    return {f"~{key}": value for key in inside or [name]}


def _value_in(key: str, word: str) -> Any:
    """Returns the value of a `KEY=VALUE` word without what stands before the key."""
    text = word.partition("=")[2]
    if is_plain(word):
        return value_of(word)
    try:
        override = override_of(word)
    except UsageError:
        if not is_literal(key, text):
            raise
        if text[0] not in "[{":
            return text
        items = [item.strip() for item in text[1:-1].split(",")]
        if text[0] == "[":
            return [_item(item) for item in items]
        _check_names(word)
        return dict(re.split(r":\s*", item, maxsplit=1) for item in items)
    if not override.is_sweep_override():
        if is_mapping(key):
            _check_names(word)
        return override.value()
    kind = _kind(key)
    if kind is str:  # the value may contain commas
        return text
    one = next(iter(listed_values(override)), None)
    remedy = _example(key) if one is None else set_to(key, one)
    if get_origin(kind) is list and "[" not in text:
        remedy = set_to(key, f"[{text}]")
    raise UsageError(
        f"{word}: a setting takes one value; rampcli sweep trains with each",
        keys=(key,),
        remedy=remedy,
    )


def is_literal(key: str, text: str) -> bool:
    """Returns whether a text means itself, although Hydra's grammar lacks its letters or signs."""
    kind = _kind(key)
    if kind in (str, None):
        return _LITERAL.fullmatch(text) is not None
    if get_origin(kind) is dict:
        return _LITERAL_MAPPING.fullmatch(text) is not None
    return get_origin(kind) is list and _LITERALS.fullmatch(text) is not None


def _check_names(word: str) -> None:
    """Checks that a mapping has no name twice. Hydra's parser keeps only the last one."""
    key, _, text = word.partition("=")
    names = _NAME.findall(text)
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{key} names {name} twice", keys=(key,), remedy="another name for one of them"
            )


def key_of(word: str, groups: Collection[str], also: Collection[str] = ()) -> str:
    """Returns the key of a `KEY=VALUE` word whose value is short enough to be parsed.

    Raises:
        UsageError: the word is not KEY=VALUE, or there is no such setting or group.
    """
    typed_key, equals, text = word.partition("=")
    prefix, key = _split(typed_key)
    if not equals or not key:
        raise UsageError(f"{word!r} is not KEY=VALUE", remedy=_as_assignment(word))
    whole = next((one for one in above(key) if find_setting(one) and not is_mapping(one)), None)
    if whole is not None and (prefix or key.rpartition(".")[2].isdecimal()):
        raise UsageError(
            f"{key} is a part of {whole}, which is set as a whole",
            keys=(key,),
            remedy=_example(whole),
        )
    drops_phases = is_phase(key) and text == "null"
    is_tree = text.startswith("{") and any(
        one.startswith(f"{key}.") for one in (*settings(), *also)
    )
    is_known = find_setting(key) is not None or key in also or (prefix and key not in groups)
    if not (is_known or drops_phases or is_tree or group_of(word, groups)):
        raise _unknown(key, text, groups)
    if len(text) > LONGEST_GRAMMAR_VALUE or max(map(text.count, "[{(,")) > MOST_NESTED_PARTS:
        raise UsageError(
            f"{word} is too long to be a value", keys=(key,), remedy="a file in --config-dir"
        )
    if _CAST.search(text) and _kind(key) not in (None, str):
        raise UsageError(
            f"{word}: conversions such as int() are not supported",
            keys=(key,),
            remedy=_example(key),
        )
    return key.partition("@")[0] if group_of(word, groups) else key


def _unknown(key: str, text: str, groups: Collection[str]) -> UsageError:
    """Returns the error for a key that cannot be set, which offers keys that take what was typed.

    If no near key does, it offers values that they take.
    """

    def offer(names: Sequence[str]) -> Sequence[Remedy]:
        values = {name: _as_typed(name, text) for name in names if name not in groups}
        takes: list[Remedy] = [
            set_to(name, value) for name, value in values.items() if value is not None
        ]
        options = [nearest_options(name, text) for name in names if name in groups]
        return [*options, *(takes or [_example_near(name, text) for name in values])]

    error = unknown_key(key, groups, offer=offer)
    error.remedies = (*choices_in(key, text),) or error.remedies
    return error


def _as_typed(key: str, text: str) -> Any:
    """Returns what was typed as the value of a setting, or None if the setting does not take it."""
    setting = find_setting(key)
    assert setting is not None
    listed = f"[{text}]" if setting.type == list[str] and text and "[" not in text else text
    try:
        value = typed(key, _value_in(key, f"{key}={listed}"))
    except UsageError:
        return None
    is_choice = not setting.choices or shown(value) in setting.choices
    return value if is_choice and not any(check_range(setting, value)) else None


def _example_near(key: str, text: str) -> Remedy:
    setting = find_setting(key)
    assert setting is not None
    example = setting.example_like(text)
    return f"{key}=VALUE" if example.values[key] == (None,) else example


def override_of(word: str) -> Any:
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
    name = word.lstrip("-").replace("-", "_")
    found = [name] if find_setting(name) else nearest_keys(name)[:2] if name else []
    return " or ".join(f"{key}=VALUE" for key in found or ["KEY"])


def _readable(key: str, text: str) -> Remedy | None:
    if has_reference(text) and text.count("{") == text.count("}"):
        return set_to(key, quoted(text))
    for opening, closing in ("[]", "{}", "()"):
        if text.count(opening) > text.count(closing):
            return f"closing the bracket: {typeable(f'{key}={text}{closing}')}"
    if _kind(key) == list[str] and (items := re.fullmatch(r"\[([^\[\]'\"]+)\]", text)):
        return set_to(key, f"[{','.join(map(quoted, items[1].split(',')))}]")
    if (setting := find_setting(key)) is not None and setting.type is not str:
        return setting.example_like(text)
    return set_to(key, quoted(text))


def _example(key: str) -> Remedy | None:
    setting = find_setting(key)
    return None if setting is None else setting.example()


def _kind(key: str) -> Any:
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
        is_plain = _value_in(key, f"{key}={text}") == text
    except UsageError:
        is_plain = False
    return typeable(f"{key}={text if is_plain else quoted(text)}")
